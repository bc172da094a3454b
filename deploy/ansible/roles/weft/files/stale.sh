#!/bin/sh
# stale.sh UNIT FILE: says whether the daemon of a unit runs another program than is installed, or has begun before its
# configuration was written: stale, fresh, or stopped.
set -eu
show() {
    systemctl show --timestamp=unix --property "$2" --value "$1"
}

pid=$(show "$1" MainPID)
test "${pid:-0}" -gt 0 || {
    echo stopped
    exit
}
began=$(show "$1" ExecMainStartTimestamp)
if test "/proc/$pid/exe" -ef /usr/bin/weft &&
    test "$(stat -c %Y "$2")" -le "${began#@}"; then
    echo fresh
else
    echo stale
fi
