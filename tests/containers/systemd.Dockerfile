# The image with systemd and nginx, for deploy/nightjar@.service and deploy/replace.sh.
ARG IMAGE=nightjar
# hadolint ignore=DL3006  # the image that is tested
FROM ${IMAGE}
# hadolint ignore=DL3002  # systemd runs as root
USER 0:0
# hadolint ignore=DL3008  # any version of Debian 12 does
RUN apt-get update \
    && apt-get install --yes --no-install-recommends nginx-light systemd \
    && rm -rf /var/lib/apt/lists/*
HEALTHCHECK NONE
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/lib/systemd/systemd"]
CMD []
