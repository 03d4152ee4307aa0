# What the guest's steps share. $array is the folder of members, $groups how many inner arrays,
# $first the number of the first md device. What is wrong is said in lines that begin with BAD.
# A process costs a lot in here: what bash can do by itself it does.
bitmap=0 degraded=0 first=0
exec {never}<>/run/never
pause() { read -rt 0.02 -u "$never" || true; }
# is FILE VALUE
is() {
    local found
    read -r found <"$1"
    [ "$found" = "$2" ]
}

# Loop devices of the members, and the md devices that have redundancy: the inner ones, if any.
attach() {
    local file group loop=$((first * 10))
    loops=() parts=()
    for file in "$array"/m*.img; do
        losetup "/dev/loop$loop" "$file"
        loops+=("/dev/loop$((loop++))")
    done
    outer=md$first per=$((${#loops[@]} / groups))
    if [ "$groups" = 1 ]; then
        parts=("$outer")
    else
        for ((group = 0; group < groups; group++)); do parts+=("md$((first + 1 + group))"); done
    fi
}

# Whether mdadm finds superblocks and bitmaps as they should be. Not of a degraded array: who was left
# out knows nothing of the stop, and the bitmap of the rest says what it missed.
examine() {
    mdadm --examine "${loops[@]}" >/run/said || echo "BAD examine of $array"
    all checksum '*Checksum : * - correct'
    all state '*State : clean'
    [ "$bitmap" = 0 ] || {
        mdadm --examine-bitmap "${loops[@]}" >/run/said || echo "BAD examine-bitmap of $array"
        all bitmap '*Bitmap : * 0 dirty (0.0%)'
    }
}

# all NAME PATTERN: as many lines are like this as there are members.
all() {
    local line count=0
    while read -r line; do
        if [[ "$line" == $2 ]]; then count=$((count + 1)); fi
    done </run/said
    [ "$count" = "${#loops[@]}" ] || echo "BAD $1 of $array"
}

assemble() { mdadm --assemble --config=none "$@" 2>&1; }

# Starts $array as /dev/md$first, over the next ones when it is nested.
start() {
    local group
    attach
    [ "$degraded" != 0 ] || examine
    echo "a new story begins" >/dev/kmsg
    for ((group = 0; group < groups; group++)); do
        assemble "/dev/${parts[group]}" "${loops[@]:group * per:per}"
    done
    [ "$groups" = 1 ] || assemble "/dev/$outer" "${parts[@]/#//dev/}"
}

end() {
    [ "$groups" = 1 ] || mdadm --stop "/dev/$outer" 2>&1
    mdadm --stop "${parts[@]/#//dev/}" 2>&1
    losetup --detach "${loops[@]}"
}

hash() {
    echo -n "$array hash "
    sha256sum <"/dev/$outer"
}

settle() { until is "/sys/block/$1/md/sync_action" idle; do pause; done; }

# Lets a device be written that waits for that, and so with its resync.
awake() {
    local state=/sys/block/$1/md/array_state
    ! is "$state" read-auto || echo active >"$state"
}

# Sectors written to a device so far, whoever did it.
written() {
    local counters
    read -ra counters <"/sys/block/${1#/dev/}/stat"
    echo "${counters[6]}"
}

# Nothing was to be resynced since the start. This does not depend on who is faster: what is over is
# in the kernel's log.
quiet() {
    local line found=
    dmesg --read-clear >/run/said
    while read -r line; do
        case $line in
        *'a new story begins') found= ;;
        *'not clean'* | *'resync of RAID array'* | *'recovery of RAID array'*) found=$line ;;
        esac
    done </run/said
    [ "$found" = "" ] || echo "BAD resync of $array: $found"
}

# Nothing to resync, and parity and copies are right.
check() {
    local part md
    for part in "${parts[@]}"; do
        md=/sys/block/$part/md
        [ -e "$md/sync_action" ] || continue
        is "$md/resync_start" none || echo "BAD resync_start of $array"
        awake "$part"
        is "$md/degraded" "$degraded" || echo "BAD degraded of $array"
        # Not while a resync is under way or about to be.
        until { echo check >"$md/sync_action"; } 2>/run/said; do pause; done
        settle "$part"
        is "$md/mismatch_cnt" 0 || echo "BAD mismatch_cnt of $array"
    done
    quiet
}

# put FILE OFFSET
put() {
    dd if="$1" of="/dev/$outer" bs=64k seek="$2" oflag=seek_bytes conv=notrunc,fsync status=none
}

# create LEVEL OPTION...: out of $array's files, in sync, and filled from in.bin. Nested arrays get
# the options in their inner ones.
create() {
    local level=$1 group part size version=1.2
    shift
    attach
    [ "$level" = 1 ] || set -- "$@" --chunk=64
    # The superblock of the outer array is not to be where one of a member could be: mdadm takes the
    # newer of the two.
    case " $* " in *" --metadata=0.90 "* | *" --metadata=1.0 "*) version=1.0 ;; esac
    for ((group = 0; group < groups; group++)); do
        mdadm --create "/dev/${parts[group]}" --run --level="$level" --raid-devices="$per" "$@" \
            "${loops[@]:group * per:per}" 2>&1
    done
    if [ "$groups" != 1 ]; then
        mdadm --create "/dev/$outer" --run --metadata=$version --level=0 --raid-devices="$groups" \
            --chunk=64 "${parts[@]/#//dev/}" 2>&1
    fi
    for part in "${parts[@]}"; do whole "$part"; done
    size=$(blockdev --getsize64 "/dev/$outer")
    echo "$array size $size"
    head -c "$size" "$array/in.bin" |
        dd of="/dev/$outer" bs=1M iflag=fullblock conv=fsync status=none
}

# Waits until a device has all its members, in sync.
whole() {
    local md=/sys/block/$1/md
    [ -e "$md/sync_action" ] || return 0
    until is "$md/degraded" 0; do pause; done
    settle "$1"
}

# Fails the second member of each group and writes without them.
degrade() {
    local group
    for ((group = 0; group < groups; group++)); do
        [ -e "/sys/block/${parts[group]}/md/degraded" ] || continue
        mdadm "/dev/${parts[group]}" --fail "${loops[group * per + 1]}" 2>&1
    done
    put "$array/piece.bin" 300001
}

# Gives the second members back, as new ones: they are written as a whole.
rebuild() {
    local group part loop before
    quiet
    for ((group = 0; group < groups; group++)); do
        part=${parts[group]} loop=${loops[group * per + 1]}
        awake "$part"
        mdadm --zero-superblock "$loop"
        before=$(written "$loop")
        mdadm "/dev/$part" --add "$loop" 2>&1
        whole "$part"
        refilled "$part" $(($(written "$loop") - before))
    done
    echo "a new story begins" >/dev/kmsg
}

# turn SLOT OFFSET: fails a member, writes piece.bin without it, takes it back by the bitmap.
turn() {
    local loop=${loops[$1]} part=${parts[$1 / per]} before
    quiet
    awake "$part"
    mdadm "/dev/$part" --fail "$loop" 2>&1
    put "$array/piece.bin" "$2"
    mdadm "/dev/$part" --remove "$loop" 2>&1
    before=$(written "$loop")
    mdadm "/dev/$part" --re-add "$loop" 2>&1
    whole "$part"
    refilled "$part" $(($(written "$loop") - before))
    echo "a new story begins" >/dev/kmsg
}

# refilled PART SECTORS: tells them, and how many a member of the part has.
refilled() { echo "$array refilled $2 of $((2 * $(cat "/sys/block/$1/md/component_size")))"; }

# Lets a started array stay dirty while it is written, however slowly.
stay_dirty() {
    local part
    for part in "${parts[@]}"; do
        awake "$part"
        echo 1000 >"/sys/block/$part/md/safe_mode_delay"
    done
}

# write_for_ever SEED COUNT: writes runs of 4 KiB blocks of new.bin to their places, anywhere in the
# first quarter, until the power is cut; says when COUNT are written.
write_for_ever() {
    local blocks=$(($(blockdev --getsize64 "/dev/$outer") / 4096 / 4)) n at
    RANDOM=$1
    for ((n = 1; ; n++)); do
        at=$((RANDOM % (blocks - 24)))
        dd if="$array/new.bin" of="/dev/$outer" bs=4k count=$((1 + RANDOM % 24)) skip="$at" \
            seek="$at" conv=notrunc oflag=direct status=none
        [ "$n" != "$2" ] || { touch "$array/started" && sync "$array/started"; }
    done
}

# Writes for ever from when /run/go is there, beside others.
write_later() {
    (
        until [ -e /run/go ]; do pause; done
        write_for_ever "$((seed * 10 + first))" "$count"
    ) &
}
