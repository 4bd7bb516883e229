# nginx for the profile "proxy" of docker-compose.yml. The base image is that of the service.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${BASE}
# hadolint ignore=DL3008  # Debian's security updates of nginx are wanted
RUN apt-get update \
    && apt-get install --yes --no-install-recommends nginx-light \
    && rm -rf /var/lib/apt/lists/* \
    && ln -sf /dev/stdout /var/log/nginx/access.log
