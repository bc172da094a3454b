#!/bin/sh
# ssh MACHINE COMMAND, and scp FILE... MACHINE:FOLDER by the name of the other: on the machine from which all
# others are entered. /run/machines has the process that each of them begins with.
set -eu
enter() {
    machine=$1
    shift
    nsenter -t "$(cat "/run/machines/$machine")" -m -u -n -p -r -w "$@"
}
case ${0##*/} in
ssh)
    machine=$1
    shift
    enter "$machine" sh -c "$*"
    ;;
scp)
    for last; do :; done
    count=$(($# - 1))
    for file; do
        if test "$count" -gt 0; then
            enter "${last%%:*}" sh -c 'cat >"$1"' sh "${last#*:}/${file##*/}" <"$file"
            count=$((count - 1))
        fi
    done
    # Keys stay their owner's.
    enter "${last%%:*}" sh -c 'chmod 600 "$1"/*.key 2>/dev/null || :' sh "${last#*:}"
    ;;
esac
