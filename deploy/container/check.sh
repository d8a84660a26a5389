#!/bin/sh
# Builds the image and runs a DRO from it as an orchestrator would: not root, read-only, without capabilities.
#   deploy/container/check.sh
# ENGINE: podman or docker. BUILD_FLAGS, RUN_FLAGS: further options of its build and run. IMAGE: one that is built already.
# Where the base image cannot be fetched, one that mmdebstrap makes of the same release takes its name (podman, root).
set -eu
cd "$(dirname "$0")/../.."
engine=${ENGINE:-podman}
image=${IMAGE:-localhost/open-dro:check}
name=open-dro-check-$$
base=$(sed -n 's/^ARG BASE=//p' deploy/container/Containerfile)
work=$(mktemp -d)
trap '$engine rm --force "$name" >/dev/null 2>&1 || true; $engine volume rm "$name" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

failed=0
check() { # check <what> <pattern> <text>: the text has the pattern
    if printf '%s\n' "$3" | grep -Eq -- "$2"; then
        echo "ok    $1"
    else
        echo "FAIL  $1: $3"
        failed=1
    fi
}

build() {
    if ! $engine image inspect "$base" >/dev/null 2>&1 && ! $engine pull --quiet "$base" >/dev/null 2>&1; then
        echo "$base cannot be fetched: mmdebstrap makes one"
        mmdebstrap --quiet --variant=minbase bookworm "$work/root.tar"
        $engine import "$work/root.tar" "$base" >/dev/null
    fi
    format=
    [ "$engine" != podman ] || format="--format docker" # the other one knows no health check
    # shellcheck disable=SC2086  # lists of options
    $engine build $format ${BUILD_FLAGS:-} --file deploy/container/Containerfile --tag "$image" .
}
[ -n "${IMAGE:-}" ] || build

dro() { # dro <web monitor, or nothing>: writes a configuration
    cat >"$work/dro.xml" <<END
<?xml version="1.0"?>
<tnw-gateway version="1.0">
  <daemon><name>CHECK</name><log type="console"/>${1:+<web-monitor>$1</web-monitor>}</daemon>
  <portals>
    <peer><name>P</name><single-tcp><acceptor><listen-port>26123</listen-port></acceptor></single-tcp></peer>
    <peer><name>Q</name><single-tcp><acceptor><listen-port>26124</listen-port></acceptor></single-tcp></peer>
  </portals>
</tnw-gateway>
END
    chmod 0755 "$work" && chmod 0644 "$work/dro.xml"
}
run() { # run <option>... : as the chart and the Compose file do
    # shellcheck disable=SC2086
    $engine run ${RUN_FLAGS:-} --name "$name" --network none --read-only --cap-drop ALL --shm-size 64m \
        --security-opt no-new-privileges --tmpfs /tmp \
        --volume "$work/dro.xml:/etc/tnwgd/dro.xml:ro" --volume "$name:/var/lib/tnwgd" "$@"
}
wait_for() { # wait_for <pattern>: a line of the log
    tries=0
    until $engine logs "$name" 2>&1 | grep -Eq "$1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || { $engine logs "$name"; echo "FAIL  the log has no $1"; exit 1; }
        sleep 1
    done
}
in_it() { $engine exec "$name" "$@" 2>&1 || true; }

dro "*:15304"
run --detach "$image" --history /var/lib/tnwgd/history --history-interval 1 /etc/tnwgd/dro.xml >/dev/null
wait_for "web monitor listens"
log=$($engine logs "$name" 2>&1)
check "the steps of the data path are compiled" "form=compiled" "$log"
check "nothing is remarked at the start" "^0$" "$(printf '%s\n' "$log" | grep -Ec '\[(warning|error)\]' || true)"
check "it does not run as root" "^10001$" "$(in_it id -u)"
check "the root file system is read-only" "Read-only file system" "$(in_it sh -c ': > /opt/x')"
check "there is no compiler" "^no$" "$(in_it sh -c 'command -v gcc cc pip pip3 || echo no')"
check "there are no lists of packages" "^0$" "$(in_it sh -c 'ls /var/lib/apt/lists | wc -l')"
check "the health check is that of the image" "health.py" "$($engine image inspect "$image")"
health=$($engine exec "$name" python /opt/tnwgd/health.py) && status=0 || status=$?
check "the health check asks /healthz" "^0 healthy: http://127.0.0.1:15304/healthz: 200" "$status $health"
check "tnwgdctl finds the DRO" "CHECK" "$(in_it tnwgdctl status)"
$engine exec "$name" sh -c '(sleep 0.2 & exec sleep 0.1) & wait' # the first sleep ends with tini as its parent
sleep 1
check "process 1 takes the end of orphans" "^0$" "$(in_it sh -c 'cat /proc/[0-9]*/stat | grep -c ") Z " || true')"
check "a history is written" "journal" "$(in_it ls /var/lib/tnwgd/history)"
began=$(date +%s)
$engine stop --time 10 "$name" >/dev/null
check "it stops in good order by SIGTERM" "^0$" "$($engine inspect --format '{{.State.ExitCode}}' "$name")"
check "and within 8 seconds" "^[0-8]$" "$(($(date +%s) - began))"
$engine rm "$name" >/dev/null

dro ""
run --detach "$image" >/dev/null
wait_for "has started"
health=$($engine exec "$name" python /opt/tnwgd/health.py) && status=0 || status=$?
check "without a monitor the admin socket is asked" "^0 healthy: .* without <web-monitor>" "$status $health"
$engine rm --force "$name" >/dev/null

printf 'none' >"$work/dro.xml"
said=$(run "$image" 2>&1) && status=0 || status=$?
check "a file that is no configuration ends it with status 1" "^1 .*dro.xml" "$status $(printf '%s' "$said" | tail -n 1)"

for program in lbmrd umsrs; do
    # shellcheck disable=SC2086
    said=$($engine run ${RUN_FLAGS:-} --rm --entrypoint "$program" "$image" --version 2>&1) || true
    check "$program is in the image" "^$program [0-9]" "$said"
done

size=$($engine image inspect --format '{{.Size}}' "$image")
echo "size of the image: $((size / 1000000)) MB"
exit "$failed"
