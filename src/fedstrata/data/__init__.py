"""Federations: data sets, partition laws, splits and augmentation."""

from __future__ import annotations

from fedstrata.data.augmentation import Augment, parse_augment
from fedstrata.data.federation import Federation, assemble, load
from fedstrata.data.io.samples import Samples
from fedstrata.data.loading import DataSpec, check_spec
from fedstrata.data.location import Place, Reader
from fedstrata.data.partition.base import Partition
from fedstrata.data.partition.client_tests import ClientTests
from fedstrata.data.registry import Row, datasets, partitions, register_dataset, register_law
from fedstrata.data.source import Source
from fedstrata.data.sources.arrays import source_of
from fedstrata.data.statistics.duplicates import Copy, Duplicates, duplicates
from fedstrata.data.statistics.facts import Facts, facts_of
from fedstrata.data.statistics.plot import label_table, partition_picture
from fedstrata.data.task_kinds import TaskKind, find_task, task_kinds
from fedstrata.data.types import Groups, Task

__all__ = [
    "Augment",
    "ClientTests",
    "Copy",
    "DataSpec",
    "Duplicates",
    "Facts",
    "Federation",
    "Groups",
    "Partition",
    "Place",
    "Reader",
    "Row",
    "Samples",
    "Source",
    "Task",
    "TaskKind",
    "assemble",
    "check_spec",
    "datasets",
    "duplicates",
    "facts_of",
    "find_task",
    "label_table",
    "load",
    "parse_augment",
    "partition_picture",
    "partitions",
    "register_dataset",
    "register_law",
    "source_of",
    "task_kinds",
]
