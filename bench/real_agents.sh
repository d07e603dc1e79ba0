#!/usr/bin/env bash
# Run Claude Code, Codex, opencode, aider, Cline and Continue against Stepwell, with nothing but loopback to reach.
#
#   mkdir /opt/agents && cd /opt/agents
#   npm install @anthropic-ai/claude-code @openai/codex opencode-ai cline @continuedev/cli
#   python3 -m venv aider && aider/bin/pip install aider-chat
#   bench/real_agents.sh /opt/agents [--only codex] [--keep FOLDER]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/..:$here"
exec unshare --net sh -c 'ip link set lo up && exec "$@"' sh "${PYTHON:-python3}" "$here/real_agents.py" "$@"
