"""Where turns begin and end in a model's chat template, found out by rendering a marker."""

from __future__ import annotations

from collections.abc import Sequence

from alula.errors import ModelError, UsageError
from alula.models.load import LoadedModel

Message = dict[str, str]
_MARK = "⟦alula⟧"


class Turns:
    """Token ids before a user's turn, before an answer, and what ends a user's turn."""

    def __init__(self, model: LoadedModel) -> None:
        """Raises UsageError for a model without a chat template."""
        if model.chat_template is None:
            raise UsageError(
                f"{model.source.name} cannot write its own training data",
                "it comes without a chat template, so there is no place where a user speaks",
                "give --prompts FILE.jsonl with prompts of the kind it will be used for",
            )
        self._template = model.chat_template
        self._tokenizer = model.tokenizer
        _, after = self._around([])
        end = self._tokenizer.encode(after, add_bos=False)
        if not end:
            raise ModelError(
                "the chat template does not end a user's turn",
                "nothing follows the user's words in it",
                "give --prompts FILE.jsonl instead",
            )
        self.end_id = end[0]
        """The token that follows a user's words."""

    @property
    def takes_system(self) -> bool:
        """Whether the template accepts a system message."""
        try:
            self._around([{"role": "system", "content": "Be brief."}])
        except (UsageError, ModelError):
            return False
        return True

    def before_user(self, messages: Sequence[Message]) -> list[int]:
        """Ids up to the point where the user speaks next."""
        return self._tokenizer.encode(self._around(messages)[0], add_bos=False)

    def before_answer(self, messages: Sequence[Message]) -> list[int]:
        """Ids up to the point where the model answers."""
        return self._tokenizer.encode(self._template.render(messages), add_bos=False)

    def after_answer(self, messages: Sequence[Message], answer: str) -> list[int] | None:
        """Ids from the end of `answer`, just given to all but the last of `messages`, to the next
        answer. None where the template rewrites what came before.
        """
        before = self._template.render(messages[:-2]) + answer
        whole = self._template.render(messages)
        if not whole.startswith(before):
            return None
        return self._tokenizer.encode(whole[len(before) :], add_bos=False)

    def _around(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Text before and after what a user says next."""
        marked = [*messages, {"role": "user", "content": _MARK}]
        text = self._template.render(marked, add_generation_prompt=False)
        before, found, after = text.partition(_MARK)
        if not found:
            raise ModelError(
                "the chat template does not repeat what the user says",
                "a marker put in as the user's words does not come out",
                "give --prompts FILE.jsonl instead",
            )
        return before, after
