# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parser: from a dict, a JSON file or the command line."""

import dataclasses
import json
import sys
from argparse import ArgumentParser
from pathlib import Path


class PdArgumentParser(ArgumentParser):
    """Makes dataclasses of arguments."""

    def __init__(self, dataclass_types):
        super().__init__()
        if dataclasses.is_dataclass(dataclass_types):
            dataclass_types = [dataclass_types]
        self.dataclass_types = [*dataclass_types]
        for kind in self.dataclass_types:
            for field in dataclasses.fields(kind):
                reads = field.type if isinstance(field.type, type) else str
                self.add_argument(
                    f"--{field.name}", type=reads, default=field.default
                )

    def common_parse(self, args, return_remaining_strings=False):
        namespace, remaining = self.parse_known_args(args=args)
        if remaining and not return_remaining_strings:
            raise ValueError(f"Some arguments are not used: {remaining}")
        values = vars(namespace)
        return tuple(
            kind(**{f.name: values[f.name] for f in dataclasses.fields(kind)})
            for kind in self.dataclass_types
        )

    def read_json(self, json_file):
        words = []
        for key, value in json.loads(Path(json_file).read_text()).items():
            is_dict = isinstance(value, dict)
            words += [f"--{key}", json.dumps(value) if is_dict else str(value)]
        return words

    def parse_json_file(self, json_file, return_remaining_strings=False):
        return self.common_parse(
            self.read_json(json_file), return_remaining_strings
        )

    def parse_args_into_dataclasses(self, args=None):
        return self.common_parse(args)

    def parse_json_file_and_cmd_lines(self):
        return self.common_parse(self.read_json(sys.argv[1]) + sys.argv[2:])

    def parse_dict(self, args):
        known = [
            {field.name for field in dataclasses.fields(kind)}
            for kind in self.dataclass_types
        ]
        if unknown := args.keys() - set.union(*known):
            raise ValueError(f"Some arguments are not used: {sorted(unknown)}")
        return tuple(
            kind(**{k: v for k, v in args.items() if k in names})
            for kind, names in zip(self.dataclass_types, known, strict=True)
        )
