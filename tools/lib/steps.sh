# SPDX-License-Identifier: Apache-2.0
# Steps of a script, one line each with the time it took. What a step prints goes to a file under
# build/logs; when it fails, the end of that file is shown with a guess at the cause. To be sourced
# by a bash script that has set `top` to the root of the checkout.

logs=$top/build/logs
mkdir -p "$logs" || { echo "cannot write $top/build: is the disk full, or the folder somebody else's?" >&2; exit 1; }

# step TEXT COMMAND [ARG...]: runs the command and returns its status.
step() {
    local text=$1 log began status=0
    shift
    log=$logs/$(printf '%s' "$text" | tr -cs 'A-Za-z0-9.' '-').log
    printf '  %-60s ' "$text"
    began=${EPOCHREALTIME/[.,]/}
    "$@" >"$log" 2>&1 </dev/null || status=$?
    printf '%7s s' "$(seconds_since "$began")"
    if [ "$status" -eq 0 ]; then
        printf '\n'
        return 0
    fi
    printf '  FAILED\n'
    {
        printf -- '---- the end of %s\n' "${log#"$top"/}"
        tail -n 25 "$log"
        printf -- '----\n'
        likely_cause "$log"
    } >&2
    return "$status"
}

# current TEXT [WHY]: the line of a step that has nothing to do.
current() {
    printf '  %-60s current%s\n' "$1" "${2:+: $2}"
}

# note TEXT: something the reader should know, under the step it belongs to.
note() {
    printf '    %s\n' "$1"
}

seconds_since() {
    local us=$((${EPOCHREALTIME/[.,]/} - $1))
    printf '%d.%d' $((us / 1000000)) $((us % 1000000 / 100000))
}

# Says in one sentence what the usual reasons of a failure look like in a log.
likely_cause() {
    if grep -qi 'no space left on device\|not enough free space' "$1"; then
        echo "The disk is full: $(df -h --output=avail,target "$top" | tail -n 1 | awk '{print $1 " left on " $2}')."
    elif grep -qiE 'could not resolve|temporary failure (in name resolution|resolving)|network is unreachable|failed to establish a new connection|connection (refused|timed out)|name or service not known' "$1"; then
        echo "A package server could not be reached: is there a network, or a proxy or mirror to be set?"
    elif grep -qi 'permission denied\|are you root' "$1"; then
        echo "Permission was refused: run it as root, or with sudo, or as the owner of this checkout."
    elif grep -qi 'could not get lock' "$1"; then
        echo "Another package manager is running: wait until it has finished, and try again."
    elif grep -qi 'unable to locate package\|no matching distribution' "$1"; then
        echo "A package is not in the sources this machine is set up with; horon is made for Debian 12."
    fi
}
