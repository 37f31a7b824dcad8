# saywhere as a service: the core with the bundled model and the extra [serve], without PyTorch, for CPUs.
#
#     docker build --tag saywhere .
#     docker run --rm --publish 127.0.0.1:8077:8077 saywhere
#
# An index (or a model) of your own: --volume "$PWD/holiday:/data:ro" ... saywhere --index /data/index
# As published here only this machine reaches it. From others: --publish 8077:8077 --env SAYWHERE_TOKEN=...

FROM python:3.11-slim AS build
COPY . /source
WORKDIR /source
# Versions as they were tested; hashes would be asked of the checkout itself, too.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\) .*/\1/p' requirements.txt > versions.txt \
 && python -m venv /saywhere \
 && /saywhere/bin/pip install --no-cache-dir --constraint versions.txt '.[serve]'

FROM python:3.11-slim
COPY --from=build /saywhere /saywhere
ENV PATH=/saywhere/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8077
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8077/healthz', timeout=4)"]
ENTRYPOINT ["saywhere", "serve", "--host", "0.0.0.0"]
