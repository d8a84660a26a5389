#!/bin/sh
# Pack `analytics` for spark-submit: drivers and executors need nothing else of this project.
#   deploy/spark/package.sh [OUT.zip]
set -eu
out=${1:-analytics.zip}
case $out in /*) ;; *) out=$PWD/$out ;; esac
cd "$(dirname "$0")/../.."
rm -f "$out"
python3 -c '
import sys, zipfile, pathlib
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as made:
    for path in sorted(pathlib.Path("analytics").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            made.write(path)
' "$out"
echo "$out"
