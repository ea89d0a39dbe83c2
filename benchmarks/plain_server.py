"""The server that most people would write first: FastAPI, and Transformers' ``generate`` for one text at a time.

    python benchmarks/plain_server.py RUN --port 8001

``serving.py`` starts it to compare with. It knows nothing of batches, queues or depth: the model is loaded by the Auto
classes and runs all of its layers. Texts take turns, since several at once would only share the same processor.
"""

import argparse
import threading
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import depthwise  # noqa: F401  (registers the Auto classes)


class Question(BaseModel):
    input: str
    max_new_tokens: int = 64


def build(run: str) -> FastAPI:
    """The application for one run folder."""
    has_source = AutoConfig.from_pretrained(run).is_encoder_decoder
    model: Any = (AutoModelForSeq2SeqLM if has_source else AutoModelForCausalLM).from_pretrained(run).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(run)
    turn = threading.Lock()
    app = FastAPI()

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/generate")
    def generate(question: Question) -> dict[str, Any]:
        inputs = tokenizer(question.input, return_tensors="pt", return_token_type_ids=False)
        with turn, torch.inference_mode():
            made = model.generate(**inputs, max_new_tokens=question.max_new_tokens, do_sample=False)[0]
        tokens = made[1 if has_source else inputs["input_ids"].shape[1] :].tolist()
        return {"output": tokenizer.decode(tokens, skip_special_tokens=True), "tokens": tokens}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    uvicorn.run(build(options.run), host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
