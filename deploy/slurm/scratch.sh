#!/bin/sh
# scratch.sh make ROOT JOB NODE UID:GID WEFT BYTES INODES: makes the folder ROOT/JOB, which its owner alone may enter,
# with a quota unless BYTES and INODES are empty. scratch.sh remove ROOT JOB NODE: removes it, when no other node
# has it. Called by prolog.sh and epilog.sh, which see to it that it does not take for ever.
#
# A job's nodes share the folder, and each makes and removes it: ROOT/.nodes/JOB has a file for each node that has
# it, and whoever can remove that folder was the last. Only root may put anything into ROOT, or change names there or
# above, so no name in it leads elsewhere. All is done from inside of it.
set -eu
umask 077
action=$1
root=$2
job=$3
node=$4
mark=.nodes/$job/$node

fail() {
    echo "$*" >&2
    exit 1
}

# enter FOLDER: goes there, if nobody but root can put another folder of its filesystem into its place.
enter() {
    cd -P -- "$1"
    at=.
    while :; do
        test -n "$(find "$at" -maxdepth 0 -uid 0 \( ! -perm /022 -o -perm -1000 \))" ||
            fail "$1: $(readlink -f "$at") is not a folder of root into which nobody else may write"
        device=$(stat -c %d "$at")
        place=$(stat -c %i "$at")
        at=$at/..
        # Up to the mount.
        test "$(stat -c %d "$at")" = "$device" && test "$(stat -c %i "$at")" != "$place" || break
    done
    test "$(readlink /proc/self/cwd)" = "$1" || fail "$1 leads through a link"
}

enter_root() {
    enter "$root"
    test -n "$(find . -maxdepth 0 ! -perm /022)" ||
        fail "$root is not a folder of root into which nobody else may write"
}

# lock HOW: while one removes, none makes. If who has it does not let go, it is done without.
lock() {
    exec 9<.nodes
    flock "$1" -w 5 9 || :
}

make() {
    owner=$1
    weft=$2
    bytes=$3
    inodes=$4
    user=${owner%%:*}
    name=./${root##*/}
    above=${root%/*}
    enter "${above:-/}"
    test -e "$name" || mkdir -m 711 "$name" || test -d "$name"
    enter_root
    mkdir -p .nodes
    lock -s
    mkdir -p ".nodes/$job"
    touch "$mark"
    # Another node may be first.
    test -e "./$job" || mkdir "./$job" || test -d "./$job"
    test -n "$(find "./$job" -maxdepth 0 -type d \( -uid 0 -o -uid "${user#+}" \))" ||
        fail "$root/$job is there, and is no folder of the job"
    set --
    test -z "$bytes" || set -- "$@" --bytes "$bytes"
    test -z "$inodes" || set -- "$@" --inodes "$inodes"
    test $# -eq 0 || "$weft" quota set "./$job" "$@"
    chown -h "$owner" "./$job"
}

remove() {
    test -e "$root" || return 0
    enter_root
    if test -e .nodes; then lock -x; fi
    rm -f "$mark"
    # Other nodes may still have it. One that was killed here may have left the folder.
    if ! rmdir ".nodes/$job" 2>/dev/null && test -e ".nodes/$job"; then
        test -z "$(ls -A ".nodes/$job")" || return 0
        fail "$root/.nodes/$job cannot be removed"
    fi
    gone=./.removed-$job-$node
    test ! -e "./$job" || mv -T -- "./$job" "$gone-$$"
    exec 9<&-
    # Neither links are followed nor other filesystems entered.
    rm -rf --one-file-system -- "$gone"-*
}

shift 4
case $action in
make) make "$@" ;;
remove) remove ;;
*) fail "there is no $action" ;;
esac
