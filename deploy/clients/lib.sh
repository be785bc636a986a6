# What the launchers of this folder share. Sourced, not run.
#
#   TANDEM_SERVER      the gateway, default http://127.0.0.1:8000
#   TANDEM_API_KEY     a key of the gateway, default "local" (a gateway without keys takes anything)
#   TANDEM_MODEL_NAME  the model's name, default: the one that the gateway serves

set -euo pipefail
if [ -z "${TANDEM_SERVER:-}" ] && [ -n "${TANDEM_URL:-}" ]; then
  echo "note: TANDEM_URL is called TANDEM_SERVER now; the old name goes with the next version" >&2
  TANDEM_SERVER=$TANDEM_URL
fi
TANDEM_SERVER=${TANDEM_SERVER:-http://127.0.0.1:8000}
TANDEM_SERVER=${TANDEM_SERVER%/}
case $TANDEM_SERVER in *://*) ;; *) TANDEM_SERVER=http://$TANDEM_SERVER ;; esac
TANDEM_API_KEY=${TANDEM_API_KEY:-local}

die() {
  echo "$(basename "$(dirname "$0")"): $*" >&2
  exit 1
}

# need PROGRAM HOW: the program must be installed.
need() {
  command -v "$1" > /dev/null || die "$1 is not installed: $2"
}

# ask_gateway sets TANDEM_MODEL_NAME and TANDEM_CONTEXT (tokens) from what the gateway serves.
ask_gateway() {
  need curl "install the package curl"
  local list
  list=$(curl -fsS -m 10 -H "Authorization: Bearer $TANDEM_API_KEY" "$TANDEM_SERVER/v1/models") \
    || die "no gateway answers at $TANDEM_SERVER; start one (tandem serve …) or set TANDEM_SERVER and TANDEM_API_KEY"
  TANDEM_CONTEXT=$(sed -n 's/.*"context_length":\([0-9]*\).*/\1/p' <<< "$list")
  [ -n "$TANDEM_CONTEXT" ] || die "the gateway at $TANDEM_SERVER serves no model yet"
  TANDEM_MODEL_NAME=${TANDEM_MODEL_NAME:-$(sed -n 's/.*"id":"\([^"]*\)".*/\1/p' <<< "$list")}
}

# want_context TOKENS: warn when the client needs more context than the gateway offers.
want_context() {
  if [ "$TANDEM_CONTEXT" -lt "$1" ]; then
    echo "warning: this client wants a context of $1 tokens, the gateway offers $TANDEM_CONTEXT: long sessions will not fit" >&2
  fi
}

# output_limit prints how long one answer may get: a quarter of the context, at most 32000 tokens.
output_limit() {
  local n=$((TANDEM_CONTEXT / 4))
  echo $((n < 32000 ? n : 32000))
}

# state_dir CLIENT makes the folder that keeps the client's settings for Tandem apart from its others, and prints it.
state_dir() {
  local dir=${TANDEM_CLIENT_HOME:-${XDG_CONFIG_HOME:-$HOME/.config}/tandem/clients}/$1
  mkdir -p "$dir"
  echo "$dir"
}

# json TEXT prints TEXT as a JSON string.
json() {
  local s=${1//\\/\\\\}
  printf '"%s"' "${s//\"/\\\"}"
}
