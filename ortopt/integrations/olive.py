"""A pass for Olive (the package olive-ai): ``ortopt.optimize`` as a step of a workflow.

``python -m ortopt.integrations.olive`` prints the package configuration by which ``olive run`` finds the pass.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any, Final

from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam
from olive.resource_path import LocalFile, LocalFolder

from ortopt._version import __version__
from ortopt.api import make_options, optimize
from ortopt.documents import parse_json
from ortopt.errors import UsageError
from ortopt.options import declarations

logger = logging.getLogger("olive.ortopt")  # below Olive's own, whose level and place the user chooses

_CPU: Final = "CPUExecutionProvider"
_BESIDE: Final = ("external_initializers", "constant_inputs")
"""Files that Olive keeps beside a model; a handler has the name and the path of each."""


class OrtoptOptimization(Pass):
    """Optimizes an ONNX model with ortopt, and verifies the result.

    Its parameters are the arguments of `ortopt.optimize` (docs/options.md), ``verify`` among them, and
    ``external_data``. ``providers`` is the execution provider of the accelerator if it is not given, and ``target``
    what that implies.
    """

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:  # noqa: ARG004 -- as Olive calls it
        """Forms are chosen for a provider."""
        return False

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        parameters = {
            name: PassConfigParam(type_=Any, description=declared.help)  # ortopt reads and checks the values
            for name, declared in declarations().items()
        }
        if accelerator_spec.execution_provider:
            providers = list(dict.fromkeys((str(accelerator_spec.execution_provider), _CPU)))
            parameters["providers"].default_value = providers
        parameters["verify"] = PassConfigParam(
            type_=Any, default_value=True, description="Whether to run the result against the original, or thorough."
        )
        parameters["external_data"] = PassConfigParam(
            type_=str, default_value="auto", description="Where weights go: auto, inline or copy (beside the model)."
        )
        parameters["release"] = PassConfigParam(
            type_=str, default_value=__version__, description="Release of ortopt: Olive caches what each one has made."
        )
        return parameters

    @classmethod
    def validate_config(cls, config: type[BasePassConfig], accelerator_spec: AcceleratorSpec) -> bool:
        """Whether ortopt takes the parameters; if not, the log has the reason."""
        if not super().validate_config(config, accelerator_spec):
            return False
        try:
            make_options(**_options(config))
        except UsageError as error:
            logger.error("OrtoptOptimization: %s", error)  # noqa: TRY400 -- a sentence, no traceback
            return False
        return True

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        path = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        result = optimize(model.model_path, **_options(config), verify=config.verify)
        logger.info("%s: %r", model.model_path, result)
        saved = result.save(path, external_data=config.external_data)
        beside = _copied_beside(model, path.parent)
        alone = saved.data_path is None and not beside
        return ONNXModelHandler(
            model_path=LocalFile({"path": path}) if alone else LocalFolder({"path": path.parent}),
            onnx_file_name=None if alone else path.name,
            inference_settings=model.inference_settings,
            use_ort_extensions=model.use_ort_extensions,
            **beside,
        )


def _options(config: Any) -> dict[str, Any]:
    """The arguments of `ortopt.optimize` that a configuration gives."""
    given = {name: getattr(config, name) for name in declarations()}
    return {name: value for name, value in given.items() if value is not None}


def _copied_beside(model: ONNXModelHandler, folder: Path) -> dict[str, str]:
    """Copy what Olive keeps beside a model, to where the result is; the names as a handler takes them."""
    names = {}
    for kind in _BESIDE:
        name = getattr(model, f"{kind}_file_name")
        if name:
            shutil.copy(getattr(model, f"{kind}_path"), folder / name)
            names[f"{kind}_file_name"] = name
    return names


def package_config() -> dict[str, Any]:
    """Olive's own package configuration with this pass: for ``olive.run(workflow, package_config=package_config())``.

    Workflows name the pass by its type, ``OrtoptOptimization``.
    """
    found: dict[str, Any] = parse_json(Path(OlivePackageConfig.get_default_config_path()).read_bytes())
    found["passes"][OrtoptOptimization.__name__] = {
        "module_path": f"ortopt.integrations.olive.{OrtoptOptimization.__name__}",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["*"],
    }
    return found


__all__ = ["OrtoptOptimization", "package_config"]


if __name__ == "__main__":
    print(json.dumps(package_config(), indent=2))
