#!/usr/bin/env bash
# An outside client, guidellm (`pip install guidellm`, best into an environment of its own), against
# a running server:
#
#     benchmarks/serve_guidellm.sh http://127.0.0.1:8000 MODEL TOKENIZER_FOLDER report.json
set -euo pipefail
url=$1 model=$2 tokenizer=$3 report=$4
prompts=$(mktemp --suffix .jsonl)
trap 'rm -f "$prompts"' EXIT
python - "$prompts" <<'PYTHON'
import json
import sys
from pathlib import Path

from alula.bench.workloads import select

lines = [json.dumps({"prompt": workload.prompt}) for workload in select()]
Path(sys.argv[1]).write_text("\n".join(lines) + "\n", "utf-8")
PYTHON
"${GUIDELLM:-guidellm}" run \
    --backend "kind=openai_http,target=$url,model=$model,request_format=/v1/chat/completions,max_tokens=64" \
    --profile "kind=concurrent,streams=${STREAMS:-4}" \
    --constraint "kind=max_requests,count=${REQUESTS:-40}" \
    --tokenizer "kind=hf_auto,model=$tokenizer" \
    --data "kind=json_file,path=$prompts" \
    --output "kind=json,path=$report" --disable-progress
