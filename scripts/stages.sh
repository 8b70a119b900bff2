# Sourced by the scripts that run several stages: `stage NAME COMMAND…` runs
# one, and `stages_report` prints how many seconds each took. A stage that fails
# ends the script with its exit code.
stage_names=()
stage_seconds=()

stage() {
  local name=$1 begin=$SECONDS
  shift
  echo
  echo "== $name"
  "$@" || {
    local code=$?
    echo "== $name failed (exit code $code): $*" >&2
    exit "$code"
  }
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
