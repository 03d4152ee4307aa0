#!/bin/bash
# The first and only process of a User-Mode Linux guest that uml.rs starts. Its arguments come as
# variables of the kernel's command line: JOB is the folder of steps, WORK the folder of members.
#
# A step is a script JOB/N.sh, run with WORK mounted anew, so that nothing the host wrote between
# two steps is hidden by an old cache. What it prints goes to JOB/N.out, its status to JOB/N.status.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/run TMPDIR=/run MDADM_NO_UDEV=1

mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /run
mkdir -p /run/mdadm /run/lock /run/tree/lib/modules
ln -s "/usr/lib/uml/modules/$(uname -r)" /run/tree/lib/modules/
for module in loop md-mod raid0 raid1 raid10 raid456; do
    modprobe --dirname /run/tree "$module"
done
# Small arrays are not worth any politeness.
echo 1000000 >/proc/sys/dev/raid/speed_limit_min
echo 2000000 >/proc/sys/dev/raid/speed_limit_max
mount -t hostfs -o "$JOB" none "$JOB"

# Waiting without a process each time: the guest has long waits for what the host does.
mkfifo /run/never
exec {never}<>/run/never

run_step() {
    mount -t hostfs -o "$WORK" none "$WORK" || return 101
    (cd "$WORK" && bash -eu "$JOB/$step.sh") </dev/null
    local status=$?
    # Loop devices let go of their files a moment after they were told to.
    for _ in {1..50}; do
        umount "$WORK" && return "$status"
        sleep 0.1
    done
    return 102
}

for ((step = 0; ; step++)); do
    until [ -e "$JOB/$step.sh" ]; do read -rt 0.03 -u "$never"; done
    run_step >"$JOB/$step.out" 2>&1
    status=$?
    sync "$JOB/$step.out"
    echo "$status" >"$JOB/$step.status"
    sync "$JOB/$step.status"
done
