# docker build -t cutaway .
# docker run --rm -p 8000:8000 -v cutaway:/models cutaway
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++
WORKDIR /source
COPY . .
# One library holds the kernels for every instruction set, so that one image runs on every node.
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG EXTRAS=serve
# What else Debian has to give: KubeRay's probes call wget.
ARG PACKAGES=""
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-compile "$(ls /wheels/*.whl)[$EXTRAS]" \
    && if [ -n "$PACKAGES" ]; then apt-get update && apt-get install -y --no-install-recommends $PACKAGES \
    && rm -r /var/lib/apt/lists/*; fi \
    && useradd --uid 10001 --create-home cutaway \
    && install --directory --owner=10001 /models
USER 10001
# Fetched models; a volume here outlives the container.
ENV CUTAWAY_HOME=/models PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --start-period=2m --interval=30s --timeout=3s CMD \
    ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["cutaway"]
# docker stop waits for 10 seconds: running texts have five, and are told the end after that.
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--grace", "5"]
