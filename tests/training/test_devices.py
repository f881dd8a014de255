"""Devices by the names that drivers give them."""

import pytest

from dflash.training.devices import peak_flops


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA B200", 2250),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8),
    ],
)
def test_known_devices(name: str, tera: float) -> None:
    assert peak_flops(name) == tera * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "CPU",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA L40",
    ],
)
def test_look_alikes_and_parts_are_unknown(name: str) -> None:
    assert peak_flops(name) is None
