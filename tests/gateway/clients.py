"""Asks a gateway with clients of other projects; run in an environment that has them.

python clients.py URL PROMPT        prints one JSON object: what each of them got
"""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


def main() -> None:
    url, prompt = sys.argv[1] + "/v1", sys.argv[2]
    import litellm
    from langchain_openai import ChatOpenAI

    litellm.telemetry = False
    messages = [{"role": "user", "content": prompt}]
    given = {"model": "openai/lab", "api_base": url, "api_key": "x", "messages": messages}
    whole = litellm.completion(**given)
    pieces = litellm.completion(**given, stream=True)

    async def later() -> str:
        return (await litellm.acompletion(**given)).choices[0].message.content

    chat = ChatOpenAI(model="lab", base_url=url, api_key="x", temperature=0)
    answer = chat.invoke(prompt)
    print(
        json.dumps(
            {
                "litellm": whole.choices[0].message.content,
                "litellm reasoning": bool(whole.choices[0].message.reasoning_content),
                "litellm tokens": whole.usage.completion_tokens,
                "litellm stream": "".join(p.choices[0].delta.content or "" for p in pieces),
                "litellm async": asyncio.run(later()),
                "langchain": answer.content,
                "langchain tokens": answer.usage_metadata["output_tokens"],
                "langchain stream": "".join(piece.content for piece in chat.stream(prompt)),
            }
        )
    )


if __name__ == "__main__":
    main()
