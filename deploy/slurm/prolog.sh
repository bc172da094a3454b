#!/bin/sh
# Slurm's Prolog on each node of a job, as root: makes sure that the mount is there and answers, makes the job's
# scratch folder, and has the datasets read into the page cache that the job names. Ends within
# WEFT_MOUNT_SECONDS + WEFT_WARM_WAIT + 40 s. What it does and when it fails: docs/slurm.md.
set -eu
# Slurm gives no search path.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
here=$(dirname "$(readlink -f "$0")")
me=prolog
# shellcheck source-path=SCRIPTDIR source=job.sh
. "$here/job.sh"

# Mounts what is not mounted, with what the admin says, or as fstab has it: by systemd where there is one, so that
# the mount is not part of slurmd and does not end with it.
mount_it() {
    if test -n "$WEFT_MOUNT_COMMAND"; then
        export WEFT_MNT
        bounded "$1" sh -c "$WEFT_MOUNT_COMMAND"
    elif test -d /run/systemd/system; then
        bounded "$1" systemctl start "$(systemd-escape --path --suffix=mount "$WEFT_MNT")"
    else
        bounded "$1" mount "$WEFT_MNT"
    fi
}

# The mount is there, and what it is asked it asks the cluster: room is told from no cache. One whose process
# has died may come back by itself meanwhile (weft mount --supervise, fstab).
await_mount() {
    end=$(($(date +%s) + WEFT_MOUNT_SECONDS))
    why=
    while :; do
        left=$((end - $(date +%s)))
        test "$left" -gt 0 || break
        if ! is_mounted; then
            if mount_it "$left"; then
                is_mounted || why='it was mounted, and is not there'
            else
                why="it is not mounted, and cannot be: $said"
            fi
        elif bounded "$left" stat -f -c %b "$WEFT_MNT"; then
            return
        else
            why="it does not answer: $said"
        fi
        sleep 0.5
    done
    fail "$WEFT_MNT is not usable: ${why:-WEFT_MOUNT_SECONDS is 0}"
}

make_scratch() {
    know_user || fail "user $SLURM_JOB_UID is not known on this node"
    bounded 20 sh "$here/scratch.sh" make "$WEFT_SCRATCH" "$SLURM_JOB_ID" "$node" \
        "+$SLURM_JOB_UID:+$group" "$WEFT" "$WEFT_SCRATCH_BYTES" "$WEFT_SCRATCH_INODES" ||
        case $said in
        # The node is not to blame: another would do no better.
        *'Disk quota exceeded'* | *'No space left on device'*)
            say "the job goes on without $WEFT_SCRATCH/$SLURM_JOB_ID: $said"
            ;;
        *) fail "$WEFT_SCRATCH/$SLURM_JOB_ID cannot be made: $said" ;;
        esac
}

# What the job names in its comment, a line each: words weft:/PATH, and weft-drop:/PATH for what is to leave the page
# cache after it. The user has written that: it is data, and never more.
named() {
    printf '%s\n' "${SLURM_JOB_COMMENT:-}" | tr -d '\000-\010\016-\037\177' | tr ' ,;\t\r\v\f' '\n' |
        sed -n -e 's|^weft:|warm |p' -e 's|^weft-drop:|drop |p' | head -n "$WEFT_WARM_PATHS"
}

# As many bytes as are set, and no more than half of the memory that is free.
warm_bytes() {
    free=$(awk '/^MemAvailable:/ { printf "%.0f", $2 * 512 }' /proc/meminfo)
    if test "$WEFT_WARM_BYTES" -lt "$free"; then echo "$WEFT_WARM_BYTES"; else echo "$free"; fi
}

# Begins to warm, with the user's rights, and waits for it as long as is set. Nothing that goes wrong here is a
# reason against the job.
warm() {
    named >"$state/paths"
    test -s "$state/paths" || return 0
    as_user || {
        say "nothing is warmed: user $SLURM_JOB_UID is not known on this node, or its number is another's name"
        return 0
    }
    limit=$(warm_bytes)
    # One job at a time on a node, so that readers do not add up.
    # shellcheck disable=SC2086
    setsid timeout -k 5 "$WEFT_WARM_SECONDS" flock -F "$WEFT_STATE" nice -n 10 $as sh "$here/warm.sh" warm "$WEFT_MNT" \
        "$limit" "$WEFT_WARM_READERS" <"$state/paths" >"$state/warm.log" 2>&1 &
    warmer=$!
    start_of_warmer=$(began "$warmer") || :
    echo "$warmer $start_of_warmer" >"$state/warmer"
    tries=$((WEFT_WARM_WAIT * 10))
    while test "$tries" -gt 0 && lives "$warmer" "$start_of_warmer"; do
        sleep 0.1
        tries=$((tries - 1))
    done
    tell_warming
}

begin_job
# A job that begins anew has the number of before.
rm -rf "$state"
mkdir "$state" || fail "$state cannot be made"
await_mount
# What tells whether it is still the same after the job.
test -n "$(ls /sys/fs/fuse/connections 2>/dev/null)" ||
    mount -t fusectl fusectl /sys/fs/fuse/connections 2>/dev/null || :
life >"$state/life"
test -z "$WEFT_SCRATCH" || make_scratch
warm
