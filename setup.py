"""Map the package `dsgd.conf` to the folder `conf/`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["dsgd*"]), "dsgd.conf"], package_dir={"dsgd.conf": "conf"})
