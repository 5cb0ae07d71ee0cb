#!/bin/sh
# Kills workers, leaders and agents of Rondo's and of torchrun's jobs, and prints how long each job
# takes to go on:
#
#   PYTHON=$(bench/peers/setup.sh) bench/recovery.sh
#   bench/recovery.sh -parts kills,joins,takeovers     # Rondo alone
#
# See `bin/recovery -h` for the flags.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build
go build -o bin/recovery ./bench/recovery
exec bin/recovery "$@"
