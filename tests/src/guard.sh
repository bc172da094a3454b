# Stands beside a test: stops its cluster and removes its mounts and files once the test is over, killed or
# lets go, and ends what takes too long. Each line on standard input is a number of seconds from now; with
# the end of input comes the end. Exits with 124 if the time was over.
#
# WEFT, STUCK: programs; NAME, TEST: the test and its process; TEMP: all its files; DIR: its cluster.

# Processes that name a path of ours, or work in one: daemons, mounts, commands; not the test itself. What
# a stuck process was started with may take for ever to read.
ours() {
    {
        echo "$TEMP" | timeout -s KILL 10 grep -lsFf - /proc/[0-9]*/cmdline
        timeout -s KILL 10 find /proc/[0-9]*/cwd -maxdepth 0 -lname "$TEMP*" 2>/dev/null
    } | cut -d/ -f3 | sort -nu | grep -vx "$TEST"
}

# What this process started, and what that did, this guard aside.
below() {
    for status in /proc/[0-9]*/status; do
        sed -nE 's/^(Pid|PPid):[[:space:]]*([0-9]+).*/\2/p' "$status" 2>/dev/null | tr '\n' ' '
        echo
    done | awk -v root="$1" -v guard=$$ '
        NF == 2 { parent[$1] = $2 }
        END {
            for (pid in parent) {
                for (p = pid; p in parent && p != root && p != guard; p = parent[p]);
                if (p == root && pid != root) print pid
            }
        }'
}

# Where the daemons and mounts log: in the cluster's folder, and where their standard error goes.
logs() {
    ls "$DIR"/log/* 2>/dev/null
    for pid in $(ours); do
        case "$(readlink "/proc/$pid/fd/2")" in
        *.log) readlink "/proc/$pid/fd/2" ;;
        esac
    done
}

show() {
    echo
    echo "guard: $NAME is not done after $1 s and is ended. What the daemons and mounts said last:"
    for log in $(logs | sort -u); do
        echo "==> $log"
        tail -n 40 "$log"
    done
    echo "guard: what the processes wait for:"
    "$STUCK" $({ ours; below "$TEST"; echo "$TEST"; } | sort -nu)
    "$STUCK" --abort $({ ours; echo "$TEST"; } | sort -nu)
}

watch() {
    left=$1
    while test "$left" -gt 0; do
        sleep 1 >/dev/null 2>&1
        left=$((left - 1))
    done
    : >"$TEMP/late"
    show "$1" >&2
    kill -KILL $(ours) 2>/dev/null
    # All that the test can wait for is gone now: most fail by themselves, and others go on.
    sleep 30 >/dev/null 2>&1
    echo "guard: $NAME does not end by itself, so its whole program (process $TEST) is ended" >&2
    children=$(below "$TEST")
    kill -ABRT "$TEST"
    kill -KILL $children 2>/dev/null
    sleep 5 >/dev/null 2>&1
    kill -KILL "$TEST"
}

timer=
while read -r seconds; do
    test -z "$timer" || kill "$timer"
    watch "$seconds" &
    timer=$!
done
"$WEFT" dev stop --dir "$DIR" >/dev/null 2>&1
grep -o " $TEMP[^ ]* fuse" /proc/mounts | while read -r mnt _; do umount -l "$mnt"; done
for pid in $("$WEFT" dev status --dir "$DIR" --output json 2>/dev/null |
    grep -o '"pid": *[0-9]*' | grep -o '[0-9]*$'); do
    kill -9 "$pid" 2>/dev/null
done
# Where the cluster's own files are gone, nothing else tells of its processes.
test -e "$DIR/dev.json" || kill -KILL $(ours) 2>/dev/null
test -z "$timer" || kill "$timer" 2>/dev/null
code=0
test ! -e "$TEMP/late" || code=124
rm -rf --one-file-system "$TEMP"
exit $code
