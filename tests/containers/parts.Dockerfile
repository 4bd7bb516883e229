# Debian's Redis and Prometheus, in place of the images that docker-compose.yml takes from a registry.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${BASE}
# hadolint ignore=DL3008  # any version of Debian 12 does
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus redis-server wget \
    && rm -rf /var/lib/apt/lists/*
