# The server in a container, for the CPU:
#   docker build -t depthwise .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs/demo:/run/model:ro" depthwise
# For a GPU, build with --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 and run with --gpus all.
# With a key: -e DEPTHWISE_API_KEY=... ; with other options: ... depthwise serve /run/model --host 0.0.0.0 --max-rows 64

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY constraints.txt ./
RUN python -m venv /opt/depthwise
ENV PATH=/opt/depthwise/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Torch first, in a layer of its own: it is large and changes less often than the package.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --constraint constraints.txt --extra-index-url "${TORCH_INDEX}" torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt --extra-index-url "${TORCH_INDEX}" ".[serve]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/depthwise /opt/depthwise
# Nobody needs to write: runs are mounted to be read, and what libraries want to keep goes to /tmp.
RUN useradd --system --uid 10001 --no-create-home depthwise
ENV PATH=/opt/depthwise/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1 \
    HF_HOME=/tmp/huggingface \
    MPLCONFIGDIR=/tmp/matplotlib
USER depthwise
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
# The server finishes what it has accepted when it is told to stop; give it the time: docker stop --time 60
STOPSIGNAL SIGTERM
ENTRYPOINT ["depthwise"]
# Inside the container it has to listen to all addresses; who may reach it is for -p to say.
CMD ["serve", "/run/model", "--host", "0.0.0.0", "--port", "8000"]
