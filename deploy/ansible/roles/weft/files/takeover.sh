#!/bin/sh
# takeover.sh MNT: goes on with a mount whose process runs another program than is installed. Says `taken over`, or
# nothing.
set -eu
process=$(grep -hsF "\"path\":\"$1\"" /run/weft/mounts/*.json | sed -n 's/.*"process":{"pid":\([0-9]*\).*/\1/p')
test -n "$process" || exit 0
test -e "/proc/$process" || exit 0
if test "/proc/$process/exe" -ef /usr/bin/weft; then exit 0; fi
weft mount --takeover "$1"
echo 'taken over'
