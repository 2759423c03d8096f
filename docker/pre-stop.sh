#!/bin/sh
# What a GPU worker does before it is stopped, as when a spot node is taken back: processes that own an engine get SIGTERM,
# write their finished rows and fail their tasks as worth another try. Waits for them, 60 seconds at most or as many as given.
set -u
left="${1:-60}"
proc="${2:-/proc}" # another folder shows fewer processes

engines() { # leaders of their process group only: an engine's own processes are ended by their leader
  for folder in "$proc"/[0-9]*; do
    pid="${folder##*/}"
    tr '\0' ' ' 2>/dev/null <"$folder/cmdline" | grep -Eq -- '-m include\.(generation|escalation|judging|tuning|distillation|batch) ' || continue
    [ "$(sed 's/.*) //' "$folder/stat" 2>/dev/null | cut -d' ' -f3)" = "$pid" ] && echo "$pid"
  done
}

for pid in $(engines); do kill -TERM "$pid" 2>/dev/null; done
while [ "$left" -gt 0 ] && [ -n "$(engines)" ]; do
  sleep 1
  left=$((left - 1))
done
sleep 3 # in which the tasks report how they ended
