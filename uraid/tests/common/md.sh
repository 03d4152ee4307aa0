# What the guest's steps share. $array is the folder of members, $groups how many inner arrays.
assemble() { mdadm --assemble --config=none "$@" 2>&1; }

# Starts $array as /dev/md0, over /dev/md1 and so on when it is nested.
start() {
    local file group
    loops=() parts=(md0)
    for file in "$array"/m*.img; do loops+=("$(losetup --find --show "$file")"); done
    for file in "${loops[@]}"; do
        mdadm --examine "$file" | grep -q 'Checksum : .* - correct' || echo "BAD superblock $file"
        [ "${bitmap:-0}" = 0 ] || mdadm --examine-bitmap "$file" | grep -q 'Bitmap : .* 0 dirty' ||
            echo "BAD bitmap $file"
    done
    if [ "$groups" = 1 ]; then
        assemble /dev/md0 "${loops[@]}"
        return
    fi
    local per=$((${#loops[@]} / groups))
    parts=()
    for ((group = 0; group < groups; group++)); do
        assemble "/dev/md$((group + 1))" "${loops[@]:group * per:per}"
        parts+=("md$((group + 1))")
    done
    assemble /dev/md0 "${parts[@]/#//dev/}"
}

end() {
    local part
    sync
    mdadm --stop /dev/md0
    for part in "${parts[@]}"; do [ "$part" = md0 ] || mdadm --stop "/dev/$part"; done
    losetup --detach "${loops[@]}"
}

hash() { echo "$array hash $(sha256sum </dev/md0 | cut -d' ' -f1)"; }

settle() { until [ "$(cat "/sys/block/$1/md/sync_action")" = idle ]; do sleep 0.05; done; }

# Nothing to resync, and parity and copies are right.
check() {
    local part md
    for part in "${parts[@]}"; do
        md=/sys/block/$part/md
        [ -e "$md/sync_action" ] || continue
        # Before it may write, and so resync: afterwards it could be over already.
        [ "$(cat "$md/resync_start")" = none ] || echo "BAD resync_start of $array"
        mdadm --readwrite "/dev/$part" 2>/dev/null || true
        [ "$(cat "$md/degraded")" = "${degraded:-0}" ] || echo "BAD degraded of $array"
        echo check >"$md/sync_action"
        settle "$part"
        [ "$(cat "$md/mismatch_cnt")" = 0 ] || echo "BAD mismatch_cnt of $array"
    done
}

# put FILE OFFSET
put() { dd if="$1" of=/dev/md0 bs=64k seek="$2" oflag=seek_bytes conv=notrunc,fsync status=none; }

# create LEVEL COUNT OPTION...: out of $array's files, in sync, and filled from in.bin.
create() {
    local level=$1 count=$2 file
    shift 2
    loops=() parts=(md0)
    for file in "$array"/m*.img; do loops+=("$(losetup --find --show "$file")"); done
    [ "$level" = 1 ] || set -- "$@" --chunk=64
    mdadm --create /dev/md0 --run --metadata=1.2 ${bitmap_options:---bitmap=none} --level="$level" \
        --raid-devices="$count" "$@" "${loops[@]}" 2>&1
    until [ "$(cat /sys/block/md0/md/degraded)" = 0 ]; do sleep 0.05; done
    settle md0
    echo "$array size $(blockdev --getsize64 /dev/md0)"
    head -c "$(blockdev --getsize64 /dev/md0)" "$array/in.bin" | dd of=/dev/md0 bs=1M iflag=fullblock conv=fsync status=none
}

# Fails the second member and writes without it.
degrade() {
    mdadm /dev/md0 --fail "${loops[1]}" 2>&1
    put "$array/piece.bin" 300001
}

# Gives the second member back, as a new one.
rebuild() {
    mdadm --readwrite /dev/md0 2>/dev/null || true
    mdadm --zero-superblock "${loops[1]}"
    mdadm /dev/md0 --add "${loops[1]}" 2>&1
    until [ "$(cat /sys/block/md0/md/degraded)" = 0 ]; do sleep 0.05; done
    settle md0
}

# turn SLOT OFFSET: fails a member, writes piece.bin without it, takes it back by the bitmap.
turn() {
    local loop=${loops[$1]}
    mdadm --readwrite /dev/md0 2>/dev/null || true
    mdadm /dev/md0 --fail "$loop" 2>&1
    put "$array/piece.bin" "$2"
    mdadm /dev/md0 --remove "$loop" 2>&1
    mdadm /dev/md0 --re-add "$loop" 2>&1
    until [ "$(cat /sys/block/md0/md/degraded)" = 0 ]; do sleep 0.05; done
    settle md0
}

# Writes blocks of new.bin to their places, in the first quarter, until the power is cut.
write_for_ever() {
    local blocks=$(($(blockdev --getsize64 /dev/md0) / 65536 / 4)) n
    for ((n = 0; ; n++)); do
        dd if="$array/new.bin" of=/dev/md0 bs=64k count=1 skip=$((n * 5 % blocks)) \
            seek=$((n * 5 % blocks)) conv=notrunc oflag=direct status=none
        [ "$n" = 12 ] && touch "$array/started" && sync "$array/started"
    done
}
