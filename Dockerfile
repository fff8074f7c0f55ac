# One image for the operator, the command line and the engine kit (docs/image.md).
#
# BASE: any image with `python3` 3.11 or later, its venv module and a shell; both stages stand on it.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build

# What builds is an environment of its own, which stays here: no pip and no build tool goes into the image.
# The two secrets say how this builder reaches a package index, where it needs to be told; no layer has them.
COPY requirements-build.lock requirements-operator.lock ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    python3 -m venv tools \
 && tools/bin/python -m pip install --quiet --only-binary :all: --require-hashes -r requirements-build.lock \
 && python3 -m venv --without-pip /opt/venv \
 && tools/bin/python -m pip --python /opt/venv/bin/python install --quiet --no-compile --only-binary :all: \
      --require-hashes -r requirements-operator.lock

# Of the Kubernetes client we use what authenticates and sends. Its classes for each kind and each API group are 123 of
# its 126 MB, twice over (for threads and for asyncio), and it loads each at its first use: none of ours, and kopf does
# without (kopf/_cogs/helpers/thirdparty.py). Then everything is compiled, so that a read-only container need not; by
# hash instead of time, so that the same sources make the same files.
RUN cd "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && find kubernetes/client/api kubernetes/client/models kubernetes/aio/client/api kubernetes/aio/client/models \
      -name '*.py' ! -name __init__.py -delete \
 && find kubernetes -name '*_test.py' -delete \
 && find /opt/venv/bin -type f -delete \
 && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash .

COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY connector connector
RUN tools/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist . \
 && tools/bin/python -m pip --python /opt/venv/bin/python install --quiet --no-compile --no-deps --no-index \
      --find-links dist stanch \
 && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash \
      "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && mkdir /opt/stanch \
 && /opt/venv/bin/python -m stanch_connector.install /opt/stanch

FROM ${BASE}
# Nobody becomes another user here, and nobody leaves files but in /tmp.
RUN find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
 && find / -xdev -type d -perm -0002 ! -path /tmp -exec chmod o-w {} +
COPY --from=build /opt/venv /opt/venv
# For image volumes. As an init container the image puts the same into a volume mounted here:
# python -m stanch_connector.install /opt/stanch
COPY --from=build /opt/stanch /opt/stanch
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
# Any other numeric user works too: nothing is written but below /tmp.
USER 65532:65532
EXPOSE 8080 9443 9095
ENTRYPOINT ["stanch"]
CMD ["operator"]
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Stanch" \
      org.opencontainers.image.description="Finds, confirms and repairs KV-cache leaks in disaggregated prefill/decode vLLM serving" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
