#!/bin/sh
# Slurm's Epilog on each node of a job, as root: ends what still warms, removes the job's scratch folder, waits until
# all that was done through the mount is durable, and has datasets leave the page cache that the job wants
# to leave it. Ends within WEFT_CLEAN_SECONDS + WEFT_SYNC_SECONDS + WEFT_DROP_SECONDS + 20 s. What it does
# and when it fails: docs/slurm.md.
set -eu
# Slurm gives no search path.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
here=$(dirname "$(readlink -f "$0")")
me=epilog
# shellcheck source-path=SCRIPTDIR source=job.sh
. "$here/job.sh"

# What warms: one session, of its first process, which is root's, and others, which are of the job's owner. The number
# may be somebody else's by now.
warming() {
    test ! -e "/proc/$warmer" || test "$(began "$warmer")" = "$start_of_warmer" || return 0
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$warmer" '
        { pid = $1; sub(/.*\) /, ""); if ($4 == session && $1 != "Z") print pid }' |
        while read -r pid; do
            user=$(awk '/^Uid:/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || :
            test "$pid" != "$warmer" && test "$user" != "$SLURM_JOB_UID" || echo "$pid"
        done
}

# Ends the warming and all its readers. What hangs in the mount ends when that goes
# on, and nobody waits for it.
end_warming() {
    test -r "$state/warmer" || return 0
    read -r warmer start_of_warmer <"$state/warmer" || return 0
    is_number "$warmer" || return 0
    tries=50
    while test "$tries" -gt 0; do
        pids=$(warming)
        test -n "$pids" || break
        # shellcheck disable=SC2086
        kill -s KILL $pids 2>/dev/null || :
        sleep 0.1
        tries=$((tries - 1))
    done
    tell_warming
}

# A long removal goes on by itself: the folder has another name by then, and its place is free.
remove_scratch() {
    start sh "$here/scratch.sh" remove "$WEFT_SCRATCH" "$SLURM_JOB_ID" "$node"
    await "$WEFT_CLEAN_SECONDS" || say "$WEFT_SCRATCH/$SLURM_JOB_ID is not removed yet: $said"
}

# What was refused for a quota is its user's business. It is told once: then the rest is asked for.
sync_mount() {
    end=$(($(date +%s) + WEFT_SYNC_SECONDS))
    for _ in 1 2; do
        bounded "$((end - $(date +%s)))" "$WEFT" sync "$WEFT_MNT" && return
        case $said in
        *'Disk quota exceeded'*) say "somebody on this node has written more than his quota allows: $said" ;;
        *) fail "what the job has written to $WEFT_MNT may not be durable: $said" ;;
        esac
    done
}

# Whether the mount is the one that the job began with.
is_same_mount() {
    test ! -s "$state/life" || test "$(life)" = "$(cat "$state/life")"
}

# What is dirty cannot leave the cache: this comes after the sync.
drop_datasets() {
    grep '^drop ' "$state/paths" >"$state/drop" 2>/dev/null || return 0
    as_user || return 0
    # shellcheck disable=SC2086,SC2016
    bounded "$WEFT_DROP_SECONDS" $as sh -c 'exec sh "$1" drop "$2" "$3" <&4' sh \
        "$here/warm.sh" "$WEFT_MNT" "$WEFT_WARM_READERS" 4<"$state/drop" ||
        say "not all of what the job named left the page cache: $said"
}

begin_job
mkdir -p "$state" || fail "$state cannot be made"
# The job is over, whatever becomes of this.
trap 'rm -rf "$state"' EXIT
end_warming
if is_mounted; then
    test -z "$WEFT_SCRATCH" || remove_scratch
    # The node is free after this: it may be powered off, or given to somebody who waits for what was written.
    sync_mount
    is_same_mount ||
        fail "$WEFT_MNT was mounted anew during the job: what it had written before and not synced is lost"
    drop_datasets
elif test -s "$state/life"; then
    fail "$WEFT_MNT is not mounted any more: what the job had written and not synced may be lost, and its scratch folder stays"
else
    say "$WEFT_MNT is not mounted any more: nothing to sync, and the job's scratch folder stays"
fi
