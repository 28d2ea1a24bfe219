# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The HTML page: one self-contained file, legible on a phone and a desktop."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light; --ink: #24292f; --soft: #57606a;
        --line: #d8dee4; --tint: #f6f8fa; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 4rem;
       color: var(--ink); background: #fff; line-height: 1.55;
       font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans",
             sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0.5rem 0 0.25rem; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3rem 0 0.5rem;
     padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 0.5rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
.soft, figcaption, small { color: var(--soft); }
.summary { background: var(--tint); border-left: 4px solid var(--accent);
           padding: 0.75rem 1rem; margin: 1rem 0 1.5rem; }
.summary p { margin: 0.35rem 0; }
.summary ul { margin: 0.25rem 0 0.75rem; padding-left: 1.1rem; }
nav a { color: var(--accent); margin-right: 1rem; }
.scroll { overflow-x: auto; }
[data-table] table { min-width: 75%; }
table { border-collapse: collapse; font-size: 0.9rem;
        font-variant-numeric: tabular-nums; }
th, td { padding: 0.28rem 0.75rem; text-align: right; vertical-align: top; }
td { white-space: nowrap; }
th[scope=row] { text-align: left; font-weight: 400; padding-left: 0; }
thead th { border-bottom: 2px solid var(--ink); }
tbody tr { border-bottom: 1px solid var(--line); }
tr.group th { text-align: left; padding: 1rem 0 0.3rem; font-size: 0.8rem;
              color: var(--soft); text-transform: uppercase;
              letter-spacing: 0.04em; }
table.config th, table.config td { text-align: left; padding-left: 0; }
table.config td { white-space: normal; overflow-wrap: anywhere;
                  font-family: ui-monospace, Menlo, Consolas, monospace;
                  font-size: 0.82rem; }
table.claims td { font-family: inherit; min-width: 9rem;
                  padding-right: 0.75rem; }
figure { margin: 1.75rem 0; }
figure img { display: block; width: 100%; height: auto; }
figcaption { font-size: 0.9rem; max-width: 46rem; margin-top: 0.4rem; }
details { margin: 0.75rem 0; }
summary { cursor: pointer; color: var(--accent); }
dt { font-weight: 600; margin-top: 0.5rem; }
dd { margin: 0 0 0 1rem; }
code { font-family: ui-monospace, Menlo, Consolas, monospace;
       font-size: 0.88em; overflow-wrap: anywhere; }
li { margin: 0.35rem 0; max-width: 46rem; }
@media (max-width: 600px) {
  body { padding: 0.75rem 0.9rem 3rem; }
  h1 { font-size: 1.4rem; }
  h2 { font-size: 1.2rem; }
  th, td { padding: 0.25rem 0.45rem; }
  [data-table] th[scope=row], [data-table] thead td {
    position: sticky; left: 0; background: #fff; max-width: 8.5rem; }
  table { font-size: 0.82rem; }
}
@media print { body { max-width: none; } details { display: none; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<div class="summary">
{% for section in sections -%}
<p><strong>{{ section.title }}</strong></p>
<ul>{% for method, text in section.summary.items() -%}
<li><b style="color: {{ section.colors[method] }}">{{ method }}</b>:
{{ text }}</li>
{% endfor %}</ul>
{% endfor -%}
</div>
{% if sections|length > 1 -%}
<nav>{% for section in sections %}<a href="#{{ section.anchor }}">
{{- section.title }}</a>{% endfor %}<a href="#notes">How to read the
numbers</a></nav>
{% endif -%}
{% if cuts -%}
<p>{{ cuts|join(" ") }}</p>
{% endif -%}
{% if claims -%}
<section id="claims">
<h2>Claims</h2>
<div class="scroll"><table class="config claims"><thead><tr><th>about</th>
<th>claim</th><th>verdict</th><th>what decided it</th></tr></thead><tbody>
{% for where, claim, verdict, evidence in claims -%}
<tr><th scope="row">{{ where }}</th><td>{{ claim }}</td>
<td><b>{{ verdict }}</b></td><td>{{ evidence }}</td></tr>
{% endfor %}</tbody></table></div>
</section>
{% endif -%}
{% for section in sections %}
<section id="{{ section.anchor }}">
<h2>{{ section.title }}</h2>
<p>{{ section.description }}</p>
<p class="soft">{{ section.extent }}</p>
{% if section.num_hidden %}<p class="soft">The figures show the first
{{ section.methods|length - section.num_hidden }} of the
{{ section.methods|length }} methods, the table all.</p>{% endif %}
{% for figure in section.figures[:1] %}{{ picture(figure) }}{% endfor %}
<h3>What each method did</h3>
<div class="scroll" data-table>{{ section.table_html }}</div>
<p class="soft"><small>{{ section.table.note }}</small></p>
<details><summary>What each row means</summary><dl>
{% for label, meaning in section.table.legend() -%}
<dt>{{ label }}</dt><dd>{{ meaning }}</dd>
{% endfor %}</dl></details>
{% for figure in section.figures[1:] %}{{ picture(figure) }}{% endfor %}
<h3>How it was run</h3>
{% if section.different -%}
<p>The methods differ in these options only:</p>
<div class="scroll"><table class="config"><thead><tr><th>option</th>
{%- for method in section.methods %}<th>{{ method }}</th>{% endfor %}</tr>
</thead><tbody>
{% for key, values in section.different.items() -%}
<tr><th scope="row">{{ key }}</th>
{%- for method in section.methods -%}
<td>{{ values[method] if method in values else "–" }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endif -%}
{% if section.common -%}
<details><summary>Options that all methods share ({{ section.common|length }})
</summary><table class="config"><tbody>
{% for key, value in section.common.items() -%}
<tr><th scope="row">{{ key }}</th><td>{{ value }}</td></tr>
{% endfor %}</tbody></table></details>
{% endif -%}
{% if section.facts -%}
<details><summary>Software, machine and data</summary>
<table class="config"><tbody>
{% for key, value in section.facts.items() -%}
<tr><th scope="row">{{ key }}</th><td>{{ value }}</td></tr>
{% endfor %}</tbody></table></details>
{% endif -%}
<details><summary>Raw files</summary>
<p>Relative to this page. Each folder holds <code>run.json</code> (how the run
was made), <code>metrics.jsonl</code> (one line per step) and
<code>tensors.f32</code> (norms of every tensor at every step).</p>
<ul>{% for path in section.paths %}<li><code>{{ path }}</code></li>
{% endfor %}</ul></details>
</section>
{% endfor %}
<section id="notes">
<h2>How to read the numbers</h2>
<ul>
{% for note in notes -%}
<li>{{ note }}</li>
{% endfor %}</ul>
</section>
</body>
</html>
"""

PICTURE = """<figure><div class="scroll"><picture>
<source media="(max-width: 600px)" srcset="{{ figure.narrow }}">
<img src="{{ figure.wide }}" alt="{{ figure.alt }}"
 style="min-width: {{ figure.min_width }}px"></picture></div>
<figcaption>{{ figure.caption }}</figcaption></figure>
"""
