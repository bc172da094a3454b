# What prolog.sh and epilog.sh share: the configuration, the job, and how to run what may never come back. Read
# by `.`, with $me and $here set; runs nothing by itself.
# shellcheck shell=sh disable=SC2034,SC2154

LC_ALL=C
export LC_ALL
umask 077
cd /

# say TEXT: to slurmd, which may log it, and to the system's log, which must not hold us up.
say() {
    echo "weft-$me: job ${SLURM_JOB_ID:-?}: $*" >&2
    timeout -k 1 2 logger -t weft-slurm -- "$me: job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null || :
}

# The node is not fit for jobs: Slurm drains it.
fail() {
    say "$*"
    exit 1
}

is_number() {
    case $1 in
    '' | *[!0-9]*) return 1 ;;
    esac
}

# A word that is no more than a name in a folder.
is_name() {
    case $1 in
    '' | .* | *[!A-Za-z0-9._-]*) return 1 ;;
    esac
}

# is_path PATH: absolute, plain, and not the root: what is put together from it is what it looks like.
is_path() {
    case $1 in
    */../* | */./* | *//* | */.. | */. | */) return 1 ;;
    *[[:space:]]* | *\\*) return 1 ;;
    /?*) ;;
    *) return 1 ;;
    esac
}

# Reads the configuration and what Slurm says of the job. Nothing of it is trusted to be there.
begin_job() {
    # Slurm hands nothing to this but what is its own: the variable is for tests.
    conf=${WEFT_SLURM_CONF:-/etc/weft/slurm.conf}
    test -r "$conf" || fail "there is no $conf; a sample is $here/slurm.conf"
    WEFT=weft
    WEFT_MNT=
    WEFT_MOUNT_SECONDS=20
    WEFT_MOUNT_COMMAND=
    WEFT_SCRATCH=
    WEFT_SCRATCH_BYTES=
    WEFT_SCRATCH_INODES=
    WEFT_WARM_BYTES=64GiB
    WEFT_WARM_SECONDS=600
    WEFT_WARM_READERS=8
    WEFT_WARM_PATHS=8
    WEFT_WARM_WAIT=0
    WEFT_CLEAN_SECONDS=60
    WEFT_SYNC_SECONDS=120
    WEFT_DROP_SECONDS=60
    WEFT_STATE=/run/weft-slurm
    # shellcheck source=/dev/null
    . "$conf"
    for setting in WEFT_MOUNT_SECONDS WEFT_WARM_SECONDS WEFT_WARM_READERS WEFT_WARM_PATHS \
        WEFT_WARM_WAIT WEFT_CLEAN_SECONDS WEFT_SYNC_SECONDS WEFT_DROP_SECONDS; do
        eval "is_number \"\$$setting\"" || fail "$conf: $setting is no number"
    done
    WEFT_WARM_BYTES=$(numfmt --from=iec -- "${WEFT_WARM_BYTES%iB}" 2>/dev/null) ||
        fail "$conf: WEFT_WARM_BYTES is no size"
    is_path "$WEFT_MNT" || fail "$conf: WEFT_MNT is no absolute path without blanks and dots"
    test -z "$WEFT_SCRATCH" || is_path "$WEFT_SCRATCH" ||
        fail "$conf: WEFT_SCRATCH is no absolute path without blanks and dots"
    is_number "${SLURM_JOB_ID:-}" || fail 'SLURM_JOB_ID is no number: is this called by slurmd?'
    is_number "${SLURM_JOB_UID:-}" || fail 'SLURM_JOB_UID is no number: is this called by slurmd?'
    node=${SLURMD_NODENAME:-$(uname -n)}
    is_name "$node" || fail "the name of this node is '$node', which is no name for a file"
    mkdir -p "$WEFT_STATE" || fail "$WEFT_STATE cannot be made"
    state=$WEFT_STATE/$SLURM_JOB_ID.$node
    started=0
    groups=
}

# start COMMAND...: begins a command that nobody has to wait for, in a session of its own.
#
# timeout(1) would not do: it waits for what it has killed, and who stands in a mount whose process hangs
# cannot be killed. Nor may such a one hold the pipe that slurmd reads our output from.
start() {
    started=$((started + 1))
    out=$state/$me.$started
    rm -f "$out.code"
    # shellcheck disable=SC2016
    setsid sh -c '
        out=$1
        shift
        "$@" >"$out"
        echo $? >"$out.new"
        mv "$out.new" "$out.code"' sh "$out" "$@" </dev/null >/dev/null 2>"$out.err" &
    running=$!
}

# await SECONDS: the exit code of what was started, and in $said what it said; 124 if it goes on.
await() {
    tries=$(($1 * 10))
    until test -e "$out.code"; do
        if test "$tries" -le 0; then
            said="no end of it within $1 s"
            return 124
        fi
        sleep 0.1
        tries=$((tries - 1))
    done
    said=$(head -c 2000 "$out.err" | tail -n 3 | tr '\n' ' ')
    return "$(cat "$out.code")"
}

# bounded SECONDS COMMAND...: the same, and what goes on after that is killed, as soon as it can be.
bounded() {
    limit=$1
    shift
    start "$@"
    await "$limit" || {
        code=$?
        test "$code" -ne 124 || kill -s KILL -- "-$running" 2>/dev/null || :
        return "$code"
    }
}

# Whether the mount is there, by the kernel's table: a look at it may hang.
is_mounted() {
    test "$(awk -v at="$WEFT_MNT" '
        $5 == at { for (i = 7; i < NF; i++) if ($i == "-") type = $(i + 1) }
        END { print type }' /proc/self/mountinfo)" = fuse.weft
}

# life: what tells the mount from one that is made after it at the same place, and stays the same when another process
# takes it over: its numbers in the kernel's table, and, since those are used again, that of its connection and
# when that was made.
life() {
    awk -v at="$WEFT_MNT" '$5 == at { now = $1 " " $3 } END { print now }' /proc/self/mountinfo >"$state/now"
    read -r id device <"$state/now" || :
    echo "$id $device $(stat -c '%i %y' "/sys/fs/fuse/connections/${device#*:}" 2>/dev/null)"
}

# lives PID START: whether the process that was PID is still the same, and has not ended.
lives() {
    test "$(awk '{ sub(/.*\) /, ""); print $1 == "Z" ? "" : $20 }' "/proc/$1/stat" 2>/dev/null)" = "$2"
}

began() {
    awk '{ sub(/.*\) /, ""); print $20 }' "/proc/$1/stat" 2>/dev/null
}

# tell_warming: says what the warming has said since the last time.
tell_warming() {
    test -e "$state/told" || echo 0 >"$state/told"
    head -c 8000 "$state/warm.log" | tail -n "+$(($(cat "$state/told") + 1))" >"$state/news"
    while read -r line; do
        say "$line"
    done <"$state/news"
    head -c 8000 "$state/warm.log" | wc -l >"$state/told"
}

# know_user: sets $group and $groups, what setpriv(1) is told of the groups of the job's owner.
know_user() {
    test -z "$groups" || return 0
    group=${SLURM_JOB_GID:-}
    # There are names that look like numbers.
    if bounded 10 id -g -- "+$SLURM_JOB_UID"; then
        is_number "$group" || group=$(cat "$out")
        is_number "$group" && groups=--init-groups
    else
        is_number "$group" && groups=--clear-groups
    fi
}

# as_user: sets $as to what runs a command with the rights of the job's owner. One harmless capability keeps his
# other processes from taking such a one over by ptrace(2): it runs outside of the limits of his job.
as_user() {
    know_user || return 1
    as="env -i PATH=$PATH LC_ALL=C setpriv --reuid=$SLURM_JOB_UID --regid=$group $groups"
    as="$as --inh-caps=-all,+wake_alarm --ambient-caps=-all,+wake_alarm --no-new-privs"
    # To setpriv(1), too, a number may be somebody's name.
    # shellcheck disable=SC2016,SC2086
    bounded 10 $as sh -c 'echo "$(id -u) $(id -g)"' &&
        test "$(cat "$out")" = "$SLURM_JOB_UID $group"
}
