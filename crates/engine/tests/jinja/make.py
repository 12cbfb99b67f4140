#!/usr/bin/env python3
"""Writes cases.json: small templates that each show one habit of Python or jinja2, with what jinja2 makes of them.

Run with a Python that has jinja2 and transformers; the environment is the one transformers builds itself.
"""

import json
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import _cached_compile_jinja_template as compile_template

CONTEXT = {
    "s": "  Hello, it's World  ",
    "words": "one two  three\tfour",
    "csv": "a,b,,c",
    "lines": "one\ntwo\r\nthree\n\nfour\n",
    "empty": "",
    "uni": "Straße ÉCOLE 昴 🌟",
    "n": 7,
    "f": 2.5,
    "whole": 3.0,
    "tiny": 1e-05,
    "huge": 1e16,
    "t": True,
    "no": False,
    "none": None,
    "xs": [3, 1, 2],
    "mixed": [1, 2.0, 1e-07, "it's", None, True, [], {}, {"a": [1]}],
    "d": {"b": 1, "A": 2, "c": None, "Éa": 3, "éb": 4},
    "schema": {"type": "array", "items": {"type": "string"}, "get": 1, "values": 2, "update": 3},
    "ms": [{"role": "user", "n": 2}, {"role": "tool", "n": 1}, {"role": "user", "n": 3, "x": {"y": 5}}],
}

TEMPLATES = """
{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s.strip(' dH') }}|{{ s.strip(None) }}
{{ 'xxaxbxx'.strip('x') }}|{{ 'xxaxbxx'.lstrip('x') }}|{{ 'xxaxbxx'.rstrip('x') }}|{{ 'abc'.strip('cba') }}|
{{ words.split() }}|{{ words.split(None, 1) }}|{{ words.split(' ') }}|{{ words.split(' ', 1) }}|{{ words.split(maxsplit=2) }}
{{ ' a b '.split(None, 1) }}|{{ ' a b '.split(None, 0) }}|{{ ' a b '.rsplit(None, 0) }}|{{ ' a b '.rsplit() }}|{{ ' a  b c '.split(None, 1) }}|{{ ' a  b c '.rsplit(None, 1) }}|{{ '  '.split() }}|{{ ''.split() }}|{{ ''.split(',') }}
{{ csv.split(',') }}|{{ csv.split(',', 1)[1] }}|{{ csv.rsplit(',', 1) }}|{{ csv.split(',')[-1] }}|{{ csv.split(sep=',', maxsplit=1) }}
{{ lines.splitlines() }}|{{ lines.splitlines(true) }}|{{ lines.splitlines(keepends=True) }}
{{ csv.partition(',') }}|{{ csv.rpartition(',') }}|{{ csv.partition('z') }}|{{ csv.rpartition('z') }}
{{ csv.removeprefix('a,') }}|{{ csv.removesuffix(',c') }}|{{ csv.removeprefix('z') }}
{{ "it's a dog-house, x2y".title() }}|{{ "it's a dog-house" | title }}|{{ 'hELLO wORLD'.capitalize() }}|{{ 'hELLO' | capitalize }}
{{ uni.upper() }}|{{ uni.lower() }}|{{ uni | upper }}|{{ uni | lower }}|{{ uni | length }}
{{ s.startswith('  H') }}|{{ s.endswith(('x', '  ')) }}|{{ s.find('l') }}|{{ uni.find('昴') }}|{{ s.count('l') }}|{{ s.index('l') }}
{{ csv.replace(',', ';') }}|{{ csv.replace(',', ';', 1) }}|{{ csv | replace(',', ';') }}|{{ csv | replace(',', ';', 2) }}
{{ ','.join(['a', 'b']) }}|{{ ''.join([]) }}|{{ '-'.join('abc') }}
{{ '12'.isdigit() }}|{{ ''.isdigit() }}|{{ 'ab'.isalpha() }}|{{ 'a1'.isalnum() }}|{{ 'AB'.isupper() }}|{{ ' '.isspace() }}
{{ '{} and {}'.format(1, 'x') }}|{{ '%s-%d' | format('a', 3) }}
{{ mixed }}|{{ mixed | string }}|{{ d }}|{{ d | string }}
{{ 'a' ~ mixed ~ d ~ t ~ none ~ whole ~ n ~ f ~ undefined_thing ~ 'z' }}
{{ t }}|{{ no }}|{{ none }}|{{ n }}|{{ f }}|{{ whole }}|{{ tiny }}|{{ huge }}|{{ missing }}|{{ [missing] | length }}
{{ t | string }}|{{ none | string }}|{{ tiny | string }}|{{ huge | string }}|{{ whole | string }}|{{ missing | string }}
{{ (1, 2) }}|{{ (1,) }}|{{ () }}|{{ [1, 'a', (2, 3)] }}|{{ {'a': 1, 'b': [none, true]} }}
{{ mixed | tojson }}|{{ d | tojson }}|{{ 'a"b\\\\c\\n<>&\\'é' | tojson }}|{{ tiny | tojson }}|{{ [] | tojson }}|{{ {} | tojson }}
{{ d | tojson(indent=4) }}|{{ mixed | tojson(indent=2) }}|{{ [[], {}] | tojson(indent=1) }}|{{ xs | tojson(indent=0) }}
{{ d | tojson(sort_keys=true) }}|{{ d | tojson(separators=(',', ':')) }}|{{ uni | tojson(ensure_ascii=True) }}|{{ xs | tojson(indent='\\t') }}
{{ {1: 'a', none: 'b', 1.5: 'd'} | tojson }}|{{ (1, 2) | tojson }}|{{ xs[1:] | tojson }}|{{ missing_x | default({}) | tojson }}
{{ missing | tojson }}
{{ xs[::-1] }}|{{ xs[1:] }}|{{ xs[:-1] }}|{{ xs[-2:] }}|{{ xs[::2] }}|{{ xs[5:] }}|{{ xs[-1] }}|{{ xs[9] }}|{{ xs[0:1][0] }}
{{ 'hello'[::-1] }}|{{ 'hello'[1:3] }}|{{ 'hello'[-1] }}|{{ 'hello'[:-1] }}|{{ 'hello'[::2] }}|{{ 'hello'[3:1] }}|{{ 'hello'[-3:] }}
{{ xs[1::-1] }}|{{ 'hello'[4::-2] }}|{{ 'hello'[::-2] }}|{{ ms[-2::-1] | length }}
{{ ms[1:][0].role }}|{{ (ms[::-1] | first).n }}|{{ ms[1:] | length }}|{{ ms[1:] is sequence }}|{{ ms[:1] is iterable }}
{% for m in ms[::-1] %}{{ loop.index0 }}{{ m.role }}{{ loop.last }}{% endfor %}
{{ s is string }}{{ d is mapping }}{{ xs is mapping }}{{ xs is sequence }}{{ s is sequence }}{{ d is sequence }}{{ none is sequence }}{{ n is sequence }}
{{ xs is iterable }}{{ s is iterable }}{{ d is iterable }}{{ none is iterable }}{{ n is iterable }}{{ missing is iterable }}{{ missing is sequence }}
{{ t is boolean }}{{ n is boolean }}{{ t is true }}{{ n is true }}{{ no is false }}{{ none is false }}{{ 0 is false }}{{ t is number }}{{ f is number }}{{ s is number }}
{{ n is integer }}{{ t is integer }}{{ f is float }}{{ n is float }}{{ none is none }}{{ missing is none }}{{ missing is defined }}{{ none is defined }}{{ d.zz is defined }}{{ d.b is defined }}
{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is eq 7 }}{{ n is ne 7 }}{{ n is gt 3 }}{{ 'a' is in ['a'] }}{{ 'a' is upper }}{{ n is sameas 7 }}{{ none is sameas none }}
{{ 'a' in 'abc' }}{{ 'z' not in 'abc' }}{{ 'b' in d }}{{ 'zz' in d }}{{ 3 in xs }}{{ 9 in xs }}{{ 'x' in missing }}{{ not 'a' in 'abc' }}
{{ 'x' in none }}
{{ missing.attr }}
{{ none.attr }}|{{ n.attr }}|{{ d.zz }}|{{ d['zz'] }}|{{ s.nothing }}|{{ xs.nothing }}
{{ missing + 'a' }}
{{ 'a' + none }}
{{ 'a' + 1 }}
{{ none | length }}
{{ missing | length }}|{{ missing | list }}|{{ missing | items | list }}|{{ missing | join(',') }}|{{ missing | upper }}|{{ missing | trim }}|
{{ none | list }}
{% for x in missing %}{% else %}nothing{% endfor %}
{{ d.items() | list }}|{{ d.keys() | list }}|{{ d.values() | list }}|{{ d.get('b') }}|{{ d.get('zz') }}|{{ d.get('zz', 5) }}|{{ d | items | list }}|{{ d | list }}
{{ schema.items() | list | length }}|{{ schema['items'].type }}|{{ schema.items is mapping }}|{{ schema.items is defined }}|{{ schema.get('type') }}|{{ schema.type }}
{{ schema.values is number }}|{{ schema['values'] }}|{{ schema.update is defined }}|{{ schema['update'] }}|{{ 'items' in schema }}|{{ schema.get is callable }}
{% for k, v in schema.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }};{% endfor %}|{% for k, v in d | dictsort %}{{ k }}{{ v }};{% endfor %}
{{ d | dictsort(true) }}|{{ d | dictsort(reverse=true) }}|{{ {'a': 3, 'b': 1} | dictsort(by='value') }}|{{ {'a': 3, 'b': 1} | dictsort(false, 'value', true) }}
{{ xs | sort }}|{{ xs | sort(reverse=true) }}|{{ ms | sort(attribute='n') | map(attribute='n') | list }}|{{ ['b', 'A', 'c'] | sort }}
{{ xs | first }}|{{ xs | last }}|{{ [] | first }}|{{ xs | sum }}|{{ xs | max }}|{{ xs | min }}|{{ xs | reverse | list }}|{{ 'abc' | reverse }}
{{ xs | join(', ') }}|{{ xs | join }}|{{ ms | join('+', attribute='role') }}|{{ [1.0, none, true] | join('/') }}|{{ 'abc' | join('.') }}
{{ ms | selectattr('role', 'equalto', 'user') | list | length }}|{{ ms | rejectattr('role', 'eq', 'user') | map(attribute='n') | list }}|{{ ms | selectattr('x') | list | length }}|{{ ms | selectattr('x', 'defined') | map(attribute='x.y') | list }}
{{ xs | select('gt', 1) | list }}|{{ xs | reject('odd') | list }}|{{ xs | map('string') | list }}|{{ ['a', 'b'] | map('upper') | join }}|{{ xs | unique | list }}|{{ [[1, 2], [3]] | map('length') | list }}
{% for g in ms | groupby('role') %}{{ g.grouper }}:{{ g.list | length }};{% endfor %}{% for role, list in ms | groupby('role') %}{{ role }}{{ list | map(attribute='n') | list }}{% endfor %}
{{ '3' | int }}|{{ 'x' | int }}|{{ 'x' | int(5) }}|{{ '2.7' | float }}|{{ 'x' | float }}|{{ 2.9 | int }}|{{ 3 | float }}|{{ none | int }}|{{ '0x1f' | int(0, 16) }}|{{ ' 4 ' | int }}|{{ '3.9' | int }}|{{ 'nan' | float }}|{{ '1e3' | float }}|{{ t | int }}|{{ '-12' | int }}|{{ '1_000' | int }}
{{ missing | int }}
{{ missing | float }}
{{ 2.5 | round }}|{{ 3.5 | round }}|{{ 2.567 | round(2) }}|{{ -3 | abs }}|{{ 2.1 | round(method='ceil') }}|{{ 7.0 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}
{{ 7 / 2 }}|{{ 6 / 2 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 1 + 1.0 }}|{{ 0.1 + 0.2 }}|{{ 10 * 1.5 }}|{{ 1e3 }}|{{ 1_000 }}
{{ missing | default('x') }}|{{ none | default('x') }}|{{ none | default('x', true) }}|{{ '' | d('x', boolean=true) }}|{{ missing or 'y' }}|{{ none or 'y' }}|{{ t and 'z' }}|{{ '' or missing or 0 }}
{{ 'yes' if missing else 'no' }}|{{ 'yes' if t }}|{{ 'yes' if no }}|{{ ('a' if no else 'b') ~ 'c' }}
{{ 'a' < 'b' }}|{{ 1 < 2 < 3 }}|{{ 1 == 1.0 }}|{{ 1 == true }}|{{ 'a' == 'a' }}|{{ [1, 2] == [1, 2] }}|{{ {'a': 1} == {'a': 1.0} }}|{{ none == missing }}|{{ (1, 2) == [1, 2] }}
{{ ' a ' | trim }}|{{ 'xax' | trim('x') }}|{{ none | trim }}|{{ 5 | trim }}|{{ 'a\\x1c' | trim | length }}|{{ '\\u00a0a\\u3000' | trim }}
{{ '<a href="x">\\'&' | escape }}|{{ '<' | e }}|{{ '<b>' | safe }}|{{ '<b>' }}
{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb' | indent(2, first=true) }}|{{ 'a\\nb\\n\\nc' | indent(width=3, blank=true) }}|{{ 'a\\nb' | indent }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }}|{{ [1, 2, 3] | batch(2, 'x') | list }}|{{ [1, 2, 3, 4, 5] | slice(2) | list }}
{{ 'x\\u00e9\\x41\\t\\d' }}|{{ "it's" }}|{{ 'say "x"' }}|{{ 'a' 'b' }}
{% set ns = namespace(a=1, b=[]) %}{% for x in xs %}{% set ns.a = ns.a + x %}{% set ns.b = ns.b + [x] %}{% endfor %}{{ ns.a }}{{ ns.b }}
{% set x = 1 %}{% for i in xs %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}{% if true %}{% set x = 'if' %}{% endif %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = [a, b] %}{{ c }}{% set block %}in {{ a }} block{% endset %}{{ block }}{% set up | upper %}shout{% endset %}{{ up }}
{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}
{% macro m(a, b='x') -%} [{{ a }}{{ b }}] {%- endmacro %}{{ m() }}{{ m('q') }}{{ m(b='r', a=1) }}{{ m('a') | upper }}{{ m('a') ~ 'z' }}{{ m('a') + 'z' }}
{% macro even(n) %}{% if n == 0 %}yes{% else %}{{ odd(n - 1) }}{% endif %}{% endmacro %}{% macro odd(n) %}{% if n == 0 %}no{% else %}{{ even(n - 1) }}{% endif %}{% endmacro %}{{ even(6) }}{{ even(3) }}
{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}inside{% endcall %}
{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for m in ms if m.role == 'user' %}{{ loop.index }}{{ m.n }}{{ loop.last }}{% if loop.previtem is defined %}prev{{ loop.previtem.n }}{% endif %};{% else %}none{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}|{{ range(3) | list }}{{ range(1, 4) | list }}{{ range(5, 0, -2) | list }}
{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}|{% for c in 'abc' %}{{ c }}.{% endfor %}|{% for x in xs recursive %}{{ x }}{% endfor %}
{% for i in xs %}{% for j in xs %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}
a{% generation %}b{% set q = 1 %}{{ q }}{% endgeneration %}c
{% for m in ms %}{% generation %}{{ m.role }}{{ loop.index }}{% endgeneration %}{% endfor %}
{{ raise_exception('no ' ~ n) }}
{% macro f() %}{{ raise_exception("it's wrong") }}{% endmacro %}{{ f() | trim }}
{% if debug %}debug{% endif %}{% if lipsum %}{% endif %}ok
{{ dict(a=1, b='x') }}|{{ dict(a=1).a }}|{{ namespace(a=1).a }}
{% set j = joiner(', ') %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}
{% raw %}{{ not }} {% generation %}{% endraw %}{# comment {{ x }} #}{% filter upper %}shout {{ n }}{% endfilter %}{% with a=1 %}{{ a }}{% endwith %}{{ a }}
{{ undefined_function() }}
{{ 'a' | undefined_filter }}
{{ d.items }}{{ unclosed
{{ xs.append(4) }}
{{ [1] + [2] }}|{{ xs + [9] }}|{{ ('a' * 3) }}|{{ [0] * 2 }}|{{ (xs + xs) | length }}|{{ xs.index(1) }}|{{ xs.count(1) }}|{{ xs.copy() }}|{{ d.copy().b }}
{{ -1 }}|{{ -n }}|{{ not n }}|{{ 1 - -1 }}|{{ (n + 1) * 2 }}|{{ n - 1 }}|{{ -f }}|{{ -(2 ** 2) }}
{{ ms[0]['role'] }}|{{ ms[0].role }}|{{ ms | length - 1 }}|{{ ms[ms | length - 1].role }}|{{ ms[-1].x.y }}|{{ ms.0 }}
{{ {'a': {'b': 1}}.a.b }}|{{ {'a': 1}['a'] }}|{{ [1, 2, 3][1] }}|{{ 'abc'[1] }}|{{ {'a': 1, **{'b': 2}} }}
{{ ("a" if n > 3 else "b") | upper }}|{{ "a" if n > 3 else "b" | upper }}|{{ n > 3 and n < 10 }}|{{ not (n > 3) or f }}
""".strip("\n").split("\n")

MULTILINE = [
    "  {% if t %}\n  a\n  {% endif %}\nb\n",
    "a\n    {%- if t %}\n    b\n    {%- endif %}\n\nc\n\n",
    "{%- for x in xs %}\n    {{- x }}\n{%- endfor %}\nend\n",
    "{% for x in xs %}\n{{ x }}\n{% endfor %}\nend",
    "a  {#- note -#}  b\n  {# note #}\nc",
    "\ta\n\t{% set q = 1 %}\n\t{{ q }}\n",
    "a\r\n  {% if t %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "{%+ if t %}\n  x{% endif +%}\ny",
    "  {%+ if t %}x{% endif %}\n",
    "{% if t -%}\n\n   x\n\n{%- endif %}\n\n\n",
    "{{ 'a\nb' }}{# multi\nline #}\n{% if t %}{# x #}\n{% endif %}z",
]


def main():
    cases = []
    for source in TEMPLATES + MULTILINE:
        try:
            result = {"text": compile_template(source).render(**CONTEXT)}
        except jinja2.exceptions.TemplateError as e:
            result = {"error": str(e), "raised": type(e) is jinja2.exceptions.TemplateError}
        except (TypeError, AttributeError, ValueError) as e:
            result = {"error": str(e), "raised": False}
        cases.append({"name": source[:60], "source": source, "context": CONTEXT, **result})
    for case in cases:
        del case["context"]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    path = Path(__file__).with_name("cases.json")
    context = json.dumps(CONTEXT, ensure_ascii=False)
    path.write_text(f'{{"context": {context},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
