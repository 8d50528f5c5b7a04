# One image for every role: its entry point is `tailgauge`, and `endpoint`, `run`, `worker` and `report` are its commands.
# The first stage installs a compiler, builds the wheel and installs it with the versions of constraints.txt.
# The second copies only the installed environment: no source, no pip, no compiler, no root.
# docs/how-to/kubernetes.md says how to pin the base by its digest: docker build --build-arg BASE=python:VERSION@sha256:DIGEST

ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
WORKDIR /build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY constraints.txt ./
RUN python -m pip install --no-cache-dir --upgrade -c constraints.txt pip && \
    python -m venv --without-pip /opt/tailgauge
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
COPY analysis analysis
COPY locustfiles locustfiles
COPY scenarios scenarios
COPY docs docs
RUN python -m pip wheel --no-cache-dir --no-deps --build-constraint constraints.txt --wheel-dir dist . && \
    python -m pip --python /opt/tailgauge/bin/python install --no-cache-dir --only-binary :all: -c constraints.txt dist/*.whl

FROM ${BASE}
RUN python -m pip uninstall --yes pip setuptools wheel && \
    groupadd --gid 10001 tailgauge && \
    useradd --uid 10001 --gid tailgauge --no-create-home --home-dir /data --shell /usr/sbin/nologin tailgauge && \
    install --directory --owner tailgauge --group tailgauge /data /data/runs /data/reports /spool
COPY --from=build /opt/tailgauge /opt/tailgauge
ENV PATH=/opt/tailgauge/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
EXPOSE 5557 8000 8089
ENTRYPOINT ["tailgauge"]
CMD ["--help"]
