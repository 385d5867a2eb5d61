"""Map the package `dsgd.conf` to the folder `conf/`, and build the kernels; everything else is in pyproject.toml."""

from setuptools import Extension, find_packages, setup

KERNEL_PARTS = ("amx", "bf16", "functions", "gradient", "layers", "optimizer", "program", "sequence", "winograd")
KERNELS = Extension(
    "dsgd.gradients._kernels",
    sources=["csrc/kernels.c"],
    depends=[f"csrc/{name}.h" for name in KERNEL_PARTS],
    extra_compile_args=["-O3", "-fno-math-errno"],
    optional=True,  # without a compiler torch's layers serve
)

setup(
    packages=[*find_packages(include=["dsgd*"]), "dsgd.conf"],
    package_dir={"dsgd.conf": "conf"},
    ext_modules=[KERNELS],
)
