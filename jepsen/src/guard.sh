# Stands beside a run: when that has ended, however it did, ends what is left of its mounts, hosts and
# files. A process that waits in a mount which it serves itself, or which is served by who waits for it,
# is dead and never gone, with all its files open: so its state is looked at, and the connections are cut.
#
# RUN: its process; TEMP: all its files; HOSTS: its network namespaces.
exec 3<&0
cat <&3 >/dev/null &
while kill -0 $! 2>/dev/null && ! grep -qs '^State:[[:space:]]*Z' "/proc/$RUN/status"; do
    sleep 1
done
kill $! 2>/dev/null
for _ in 1 2 3 4 5; do
    awk -v temp="$TEMP/" 'index($5, temp) == 1 { split($3, dev, ":"); print dev[2], $5 }' /proc/self/mountinfo |
        while read -r connection at; do
            echo 1 >"/sys/fs/fuse/connections/$connection/abort"
            umount -l "$at"
        done
    grep -q " $TEMP/" /proc/self/mountinfo || break
    sleep 1
done 2>/dev/null
for host in $HOSTS; do
    ip netns delete "$host" 2>/dev/null
done
rm -rf --one-file-system "$TEMP"
