#!/bin/sh
# systemctl COMMAND [--now] UNIT...: what the guide needs of systemd, by the same units, on a machine without it.
# `systemctl boot` starts what is enabled, and mounts what fstab has, as a machine does at its start.
set -eu
units=/usr/lib/systemd/system
enabled=/etc/systemd/enabled
running=/run/units
mkdir -p "$enabled" "$running" /run/lock

# What a unit says: value UNIT KEY. %i is what stands behind its @.
value() {
    name=${1%.service}
    case $name in
    *@*) file=${name%%@*}@.service instance=${name#*@} ;;
    *) file=$name.service instance= ;;
    esac
    sed -n "s/^$2=//p" "$units/$file" | sed "s/%i/$instance/g"
}

start() {
    if alive "$1"; then return; fi
    user=$(value "$1" User)
    state=$(value "$1" StateDirectory)
    mkdir -p "/var/lib/$state"
    as=
    if test "${user:-root}" != root; then
        # As systemd does: not where the folder is his already.
        if test "$(stat -c %U "/var/lib/$state")" != "$user"; then
            chown -R "$user" "/var/lib/$state"
        fi
        as="setpriv --reuid $user --clear-groups"
    fi
    # shellcheck disable=SC2086
    setsid $as $(value "$1" ExecStart) </dev/null >>"/var/log/$1.log" 2>&1 &
    echo $! >"$running/$1"
}

alive() {
    test -e "$running/$1" && kill -0 "$(cat "$running/$1")" 2>/dev/null
}

stop() {
    if alive "$1"; then
        kill "$(cat "$running/$1")"
        while alive "$1"; do sleep 0.1; done
    fi
    rm -f "$running/$1"
}

command=$1
shift
now=
if test "${1-}" = --now; then
    now=yes
    shift
fi
case $command in
boot)
    for unit in "$enabled"/*; do
        if test -e "$unit"; then start "${unit##*/}"; fi
    done
    if grep -qs ' weft ' /etc/fstab; then mount -a -t weft; fi
    ;;
*)
    for unit; do
        case $command in
        enable)
            : >"$enabled/$unit"
            if test -n "$now"; then start "$unit"; fi
            ;;
        disable)
            rm -f "$enabled/$unit"
            if test -n "$now"; then stop "$unit"; fi
            ;;
        start) start "$unit" ;;
        stop) stop "$unit" ;;
        restart)
            stop "$unit"
            start "$unit"
            ;;
        *)
            echo "systemctl: there is no $command here" >&2
            exit 2
            ;;
        esac
    done
    ;;
esac
