#!/bin/sh
# scratch.sh make ROOT JOB NODE UID:GID WEFT BYTES INODES: makes the folder ROOT/JOB, which its owner alone may enter,
# with a quota unless BYTES and INODES are empty. scratch.sh remove ROOT JOB NODE: removes it, when no other node
# has it. Called by prolog.sh and epilog.sh, which see to it that it does not take for ever.
#
# A job's nodes share the folder, and each makes and removes it: ROOT/.nodes/JOB has a file for each node that has
# it, and whoever can remove that folder was the last. Only root may put anything into ROOT or change names
# there, so no name in it leads elsewhere.
set -eu
umask 077
action=$1
root=$2
job=$3
node=$4
dir=$root/$job
nodes=$root/.nodes/$job

fail() {
    echo "$*" >&2
    exit 1
}

make() {
    owner=$1
    weft=$2
    bytes=$3
    inodes=$4
    test -e "$root" || mkdir -m 711 "$root" || test -d "$root"
    test -n "$(find "$root" -maxdepth 0 -type d -user 0 ! -perm /022)" ||
        fail "$root is not a folder of root into which nobody else may write"
    mkdir -p "$nodes"
    : >"$nodes/$node"
    # Another node may be first.
    test -e "$dir" || mkdir "$dir" || test -d "$dir"
    test -n "$(find "$dir" -maxdepth 0 -type d \( -user 0 -o -user "${owner%%:*}" \))" ||
        fail "$dir is there, and is no folder of the job"
    set --
    test -z "$bytes" || set -- "$@" --bytes "$bytes"
    test -z "$inodes" || set -- "$@" --inodes "$inodes"
    test $# -eq 0 || "$weft" quota set "$dir" "$@"
    chown -h "$owner" "$dir"
}

remove() {
    rm -f "$nodes/$node"
    # Other nodes still have it, or it was never made.
    rmdir "$nodes" 2>/dev/null || return 0
    gone=$root/.removed-$job-$node-$$
    mv -T -- "$dir" "$gone"
    # Neither links are followed nor other filesystems entered.
    rm -rf --one-file-system -- "$gone"
}

shift 4
case $action in
make) make "$@" ;;
remove) remove ;;
*) fail "there is no $action" ;;
esac
