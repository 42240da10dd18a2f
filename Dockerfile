# docker build -t cutaway .
# docker run --rm -p 127.0.0.1:8000:8000 -v cutaway:/models cutaway
FROM debian:13-slim AS python
# What else Debian has to give: KubeRay's probes call wget.
ARG PACKAGES=""
# Without its compiled modules, 12 MB, a start takes half a second more.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 $PACKAGES \
    && rm -rf /var/cache/apt /var/lib/apt/lists/* && find /usr/lib/python3* -name __pycache__ -prune -exec rm -r {} +

FROM python AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ python3-dev python3-venv
RUN python3 -m venv /cutaway && python3 -m venv /build
COPY . /source
# One library holds the kernels for every instruction set, so that one image runs on every node.
RUN /build/bin/pip install --no-cache-dir --require-hashes -r /source/tools/build-requirements.txt \
    && /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /source
ARG EXTRAS=serve
# Left out: others' tests, stubs and symbols, and hf-xet, a faster way to files of Hugging Face than the one that is left.
# Ray starts many processes, and gives up those that compile their modules first.
RUN /cutaway/bin/pip install --no-cache-dir --no-compile "$(ls /wheels/*.whl)[$EXTRAS]" \
    && /cutaway/bin/pip uninstall --yes hf-xet \
    && find /cutaway \( -type d -name tests -o -name __pycache__ -o -name '*.pyi' -o -name '*.a' \) -prune -exec rm -r {} + \
    && find /cutaway -name '*.so*' -exec strip --strip-unneeded {} + \
    && if [ "$EXTRAS" != serve ]; then /cutaway/bin/python -m compileall -q /cutaway; fi

FROM python
RUN useradd --uid 10001 --create-home cutaway && install --directory --owner=10001 /models
COPY --from=build /cutaway /cutaway
USER 10001
# Fetched models; a volume here outlives the container.
ENV PATH=/cutaway/bin:$PATH CUTAWAY_HOME=/models PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --start-period=2m --interval=30s --timeout=3s CMD \
    ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["cutaway"]
# docker stop waits for 10 seconds: running texts have five, and are told the end after that.
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--grace", "5"]
