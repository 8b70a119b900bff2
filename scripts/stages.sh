# Sourced by the scripts that run several stages: `stage NAME COMMAND…` runs
# one, and `stages_report` prints how many seconds each took. A stage that fails
# ends the script with its exit code.
stage_now=
set -E
trap 'stage_failed "$?" "$BASH_COMMAND"' ERR
stage_names=()
stage_seconds=()

stage_failed() {
  [[ -z $stage_now ]] || echo "== $stage_now failed (exit code $1): $2" >&2
  stage_now=
}

stage() {
  local name=$1 begin=$SECONDS
  shift
  echo
  echo "== $name"
  stage_now=$name
  # Not as a part of a condition: there, of a function's commands only the last one
  # counts.
  "$@"
  stage_now=
  stage_names+=("$name")
  stage_seconds+=($((SECONDS - begin)))
}

stages_report() {
  echo
  local i
  for i in "${!stage_names[@]}"; do
    printf '%6d s  %s\n' "${stage_seconds[$i]}" "${stage_names[$i]}"
  done
  printf '%6d s  altogether\n' "$SECONDS"
}
