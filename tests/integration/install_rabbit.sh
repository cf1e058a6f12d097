#!/usr/bin/env bash
# Installs RabbitMQ if it is missing, without starting the distribution's own service.
set -euo pipefail
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] && exit 0
policy=/usr/sbin/policy-rc.d
made=
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  made=1
fi
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends rabbitmq-server
