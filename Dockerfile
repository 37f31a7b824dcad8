# saywhere as a service: the core with the bundled model and the extra [serve], without PyTorch, for CPUs.
#
#     docker build --tag saywhere .
#     docker run --rm --publish 127.0.0.1:8077:8077 saywhere
#
# An index (or a model) of your own: --volume "$PWD/holiday:/data:ro" ... saywhere --index /data/index
# As published here only this machine reaches it. From others: --publish 8077:8077 --env SAYWHERE_TOKEN=...

# The base image by the digest of its index, which names an image for each kind of processor. A newer one is looked up by
# docker buildx imagetools inspect python:3.11-slim, and tried by --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11.14-slim@sha256:c8271b1f627d0068857dce5b53e14a9558603b527e46f1f901722f935b786a39

FROM ${BASE} AS build
COPY . /source
WORKDIR /source
# All by version and hash of the lock: uv, what the core and [serve] need, and what builds the wheel. Compiled, for the user
# who runs it may write nothing.
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.txt > /uv.txt \
 && python -m venv /tools \
 && /tools/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement /uv.txt \
 && python -m venv --without-pip /saywhere \
 && /tools/bin/uv pip install --no-cache --compile-bytecode --python /saywhere/bin/python --require-hashes \
        --constraint requirements.txt --requirement pyproject.toml --extra serve \
 && /tools/bin/uv build --no-cache --require-hashes --build-constraints requirements.txt --wheel --out-dir /wheel \
 && /tools/bin/uv pip install --no-cache --compile-bytecode --python /saywhere/bin/python --no-deps /wheel/*.whl

FROM ${BASE}
COPY --from=build /saywhere /saywhere
ENV PATH=/saywhere/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8077
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8077/healthz', timeout=4)"]
ENTRYPOINT ["saywhere", "serve", "--host", "0.0.0.0"]
