#!/bin/sh
# Replace the processes behind nginx one at a time, without a failed request: `sudo deploy/replace.sh 8081 8082`.
#
# nginx sends a process nothing new while it is replaced, because it is marked `down`; what it has, it finishes. nginx
# has no health checks, so a process that is starting would otherwise get requests and answer 503.
#
# NGINX_CONF, NGINX_RELOAD and RESTART name another configuration and other commands; RESTART gets the port, and returns
# when the process is ready, as `systemctl restart` does with deploy/nightjar@.service.
set -eu
conf=${NGINX_CONF:-/etc/nginx/nginx.conf}

fail() { echo "$conf: $1" >&2; exit 1; }

mark() { # PORT OLD NEW; a line that is as wanted was left so by a run that failed
    grep -q "server 127.0.0.1:$1 $3;" "$conf" || {
        grep -q "server 127.0.0.1:$1 $2;" "$conf" || fail "no line 'server 127.0.0.1:$1 $2;'"
        sed -i "s/server 127.0.0.1:$1 $2;/server 127.0.0.1:$1 $3;/" "$conf"
    }
    ${NGINX_RELOAD:-nginx -s reload}
}

[ $# -gt 0 ] || { echo "usage: replace.sh PORT..." >&2; exit 2; }
for port in "$@"; do
    grep -o "server 127.0.0.1:[0-9]* max_fails=0;" "$conf" | grep -qv ":$port " || fail "no process in service but $port"
    mark "$port" max_fails=0 'max_fails=0 down'
    sleep 2 # until the reloaded nginx has taken over
    if [ -n "${RESTART:-}" ]; then "$RESTART" "$port"; else systemctl restart "nightjar@$port"; fi
    mark "$port" 'max_fails=0 down' max_fails=0
    sleep 2
done
