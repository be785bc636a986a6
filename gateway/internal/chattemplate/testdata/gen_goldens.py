"""Makes goldens.json: what the Python implementation of Jinja prints for the templates below.

The environment is the one that Hugging Face tokenizers build for chat templates: sandboxed and immutable, trim_blocks and
lstrip_blocks on, loop controls, a "generation" block, and a tojson filter that is json.dumps with ensure_ascii off.
Run with jinja2 3.1:  python3 gen_goldens.py
"""
import copy
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


VARS = {
    "name": "Wörld", "n": 3, "z": 0, "f": 1.5, "neg": -7, "t": True, "no": None, "empty": "", "s": "  Hello, World \n", "csv": "a,b,,c",
    "xs": [1, 2, 3], "mixed": [1, "a", None, True, 2.0, {"k": "v'"}, ['"']], "words": ["pear", "Apple", "fig", "apple"],
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "shadow", "é": "ü<&>'\""},
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 30, "tags": []}],
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}],
    "text": "one\n\ntwo\r\nthree", "uni": "ñandú 日本 😀", "quote": "it's", "dq": 'say "x"', "both": "'\"", "ctl": "a\x00\x1b\u200b\x7f",
    "big": 123456789012345678901234567890, "flt": [0.1, 1e16, 1e-5, 123456.789, 1.0, -0.0, 1e15, 3.14e100], "tool": {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}},
}

CASES = """
{{ name }}|{{ n }}|{{ f }}|{{ t }}|{{ no }}|{{ missing }}|{{ xs }}|{{ mixed }}|{{ d }}
{{ big }} {{ flt }}{% for x in flt %} {{ x }}{% endfor %}
{{ quote }} {{ [quote, dq, both, ctl, uni] }}
{{ n + 1 }} {{ n - 5 }} {{ n * f }} {{ 7 / 2 }} {{ 8 / 2 }} {{ 7 // 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }}
{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ true ~ 2.0 }} {{ 'ab' * 3 }} {{ 3 * 'x' }} {{ [1] + [2] }} {{ (1,) + (2, 3) }} {{ true + 1 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == 1 }} {{ none == false }}
{{ 1 in xs }} {{ 9 not in xs }} {{ 'ell' in s }} {{ 'a' in d }} {{ 'x' in missing }} {{ not 1 in xs }} {{ 1 in (1, 2) }}
{{ 'y' if n > 2 else 'n' }} {{ 'y' if n > 5 }} {{ 'a' if z else 'b' if empty else 'c' }} {{ (n if t else z) + 1 }}
{{ t and n }} {{ z or 'dflt' }} {{ z and 1 }} {{ no or empty or missing or 'last' }} {{ not z }} {{ not (t and z) }}
{{ 1 - -1 }} {{ - n }} {{ -n|abs }} {{ (-n)|abs }} {{ +n }} {{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ 10 - 3 - 2 }} {{ 2 * 3 % 4 }} {{ 'a' ~ (1 + 2) }}
{{ xs[0] }} {{ xs[-1] }} {{ xs[9] }} {{ xs[1:] }} {{ xs[:-1] }} {{ xs[::-1] }} {{ xs[::2] }} {{ xs[-2:] }} {{ xs[5:] }} {{ xs[2:0:-1] }} {{ xs[n:z] }}
{{ uni[0] }} {{ uni[-1] }} {{ uni[6:8] }} {{ uni[::-1] }} {{ uni[:5] }} {{ uni|length }} {{ name[1] }} {{ 'abc'[9] }}
{{ d.b }} {{ d['b'] }} {{ d.a.x[1] }} {{ d['items'] }} {{ d.nope }} {{ d.nope is defined }} {{ d.a['nope'] is undefined }} {{ xs.0 }} {{ people.1.name }} {{ no.x is defined }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{{ d.keys()|list }}|{{ d.values()|list }}|{{ d.get('b') }}|{{ d.get('q') }}|{{ d.get('q', 5) }}
{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }},{% endfor %}
{{ d|tojson }}|{{ mixed|tojson }}|{{ flt|tojson }}|{{ ctl|tojson }}|{{ big|tojson }}|{{ tool|tojson }}|{{ 'ü'|tojson(ensure_ascii=true) }}|{{ '😀'|tojson(ensure_ascii=true) }}
{{ d|tojson(indent=2) }}|{{ xs|tojson(indent=4) }}|{{ {}|tojson(indent=2) }}|{{ []|tojson(indent=2) }}|{{ d|tojson(sort_keys=true) }}|{{ d|tojson(separators=(',', ':')) }}
{{ {'a': 1, 'b': {'c': 2}} }} {{ {1: 2, none: 3}|tojson }} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'x': 1, 'x': 2} }} {{ dict(a=1, b='q') }} {{ {}|length }}
{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for x in xs if x != 2 %}{{ loop.index }}:{{ x }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}
{% for x in [] %}{{ x }}{% else %}empty{% endfor %}|{% for x in missing %}x{% else %}undef{% endfor %}|{% for c in name %}{{ c }}.{% endfor %}
{% for x in xs %}{% for y in xs %}{{ loop.index }}{{ loop.depth0 }}{% if y == 2 %}{% break %}{% endif %}{% endfor %};{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for x in xs %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x // 2) }}{% endfor %}
{% set x = 1 %}{% for i in xs %}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(found=false, n=0) %}{% for i in xs %}{% set ns.n = ns.n + i %}{% if i == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns.nope is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (p, q) = [3, 4] %}{{ p }}{{ q }}
{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(1, 2, 3) }}|{{ m() }}|{{ m(b=1, a=0) }}
{% macro v(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, 3, k=4) }}{{ v(1) }}{% macro k() %}{{ kwargs['x'] }}{% endmacro %}{{ k(x=1) }}
{% macro outer(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) outer(5) %}got {{ y }}{{ n }}{% endcall %}|{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}
{% macro fact(x) %}{% if x <= 1 %}1{% else %}{{ x * fact(x - 1)|int }}{% endif %}{% endmacro %}{{ fact(5) }}{% set g = 5 %}{% macro useg() %}{{ g }}{% endmacro %}{% set g = 6 %}{{ useg() }}
{% macro sp(x) -%}   {{ x }}   {%- endmacro %}[{{ sp('y') }}]{{ sp('y') | length }}{{ m is defined }}{{ sp is callable }}
{% filter upper %}abc {{ name }}{% endfilter %}|{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}|{% generation %}gen{{ n }}{% endgeneration %}
{{ s|trim }}|{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxaxx'|trim('x') }}|{{ 'abcba'.lstrip('ab') }}|{{ 'abcba'.rstrip('ab') }}|{{ no|trim }}|{{ missing|trim }}
{{ csv.split(',') }}|{{ csv.split(',', 1) }}|{{ csv.rsplit(',', 1) }}|{{ ' a  b\tc '.split() }}|{{ ' a  b c '.split(none, 1) }}|{{ ' a  b c '.rsplit(none, 1) }}|{{ ''.split() }}|{{ ''.split(',') }}|{{ csv.split(',')[-1] }}
{{ 'a</think>b</think>c'.split('</think>')[-1].lstrip('\\n') }}|{{ 'a<think>b'.split('<think>')|last }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'bc')) }}|{{ 'abc'.startswith('') }}
{{ 'a-b-c'.replace('-', '+') }}|{{ 'a-b-c'.replace('-', '+', 1) }}|{{ 'abc'.replace('', '.') }}|{{ 'aaa'|replace('a', 'b', 2) }}|{{ 'ab'|replace('b', 'ñ') }}|{{ 12321|replace('2', 'x') }}
{{ name.upper() }}|{{ name.lower() }}|{{ 'hello wORLD it\\'s'.title() }}|{{ 'hello wORLD it\\'s'|title }}|{{ 'hELLO wORLD'.capitalize() }}|{{ 'hELLO'|capitalize }}|{{ 'ß'|upper }}|{{ 'foo-bar baz(q'|title }}|{{ ''|capitalize }}
{{ 'hello'.find('l') }}|{{ 'hello'.rfind('l') }}|{{ 'hello'.find('z') }}|{{ 'hello'.count('l') }}|{{ 'ñü'.find('ü') }}|{{ ', '.join(['a', 'b']) }}|{{ 'x'.join([]) }}|{{ '12'.isdigit() }}|{{ ' '.isspace() }}|{{ 'a1'.isalnum() }}|{{ 'Ab'.isalpha() }}
{{ text.splitlines() }}|{{ 'a\\n'.splitlines() }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'x'.partition('=') }}|{{ 'foobar'.removeprefix('foo') }}|{{ 'foobar'.removesuffix('bar') }}|{{ 'AB'.isupper() }}|{{ 'Ab'.islower() }}
{{ xs|join }}|{{ xs|join('-') }}|{{ people|join(', ', attribute='name') }}|{{ mixed|join('/') }}|{{ 'abc'|join('.') }}|{{ d|join(',') }}
{{ xs|first }}|{{ xs|last }}|{{ []|first }}|{{ name|first }}|{{ name|last }}|{{ xs|length }}|{{ d|count }}|{{ missing|length }}|{{ s|length }}|{{ xs|list }}|{{ 'ab'|list }}|{{ d|list }}
{{ missing|default('x') }}|{{ empty|default('x') }}|{{ empty|default('x', true) }}|{{ no|default('x') }}|{{ no|d('y', boolean=true) }}|{{ z|default(5, true) }}|{{ missing|default }}|{{ d.nope|default('q') }}|{{ 'v'|default('x') }}
{{ words|sort }}|{{ words|sort(reverse=true) }}|{{ words|sort(case_sensitive=true) }}|{{ people|sort(attribute='age')|map(attribute='name')|list }}|{{ people|sort(attribute='age', reverse=true)|map(attribute='name')|list }}|{{ [3, 1, 2]|sort }}
{{ words|unique|list }}|{{ words|unique(case_sensitive=true)|list }}|{{ [1, 1.0, true, 2]|unique|list }}|{{ xs|reverse|list }}|{{ name|reverse }}|{{ words|min }}|{{ words|max }}|{{ xs|max }}|{{ xs|sum }}|{{ people|sum(attribute='age') }}|{{ people|max(attribute='age') }}
{{ people|map(attribute='name')|list }}|{{ people|map(attribute='zip', default='-')|list }}|{{ words|map('upper')|list }}|{{ words|map('replace', 'p', 'b')|join(' ') }}|{{ xs|map('string')|list }}|{{ people|map(attribute='tags.0', default='?')|list }}
{{ xs|select('odd')|list }}|{{ xs|reject('odd')|list }}|{{ [0, 1, '', 'a']|select|list }}|{{ [0, 1, '', 'a']|reject|list }}|{{ xs|select('gt', 1)|list }}|{{ xs|select('in', [1, 3])|list }}|{{ xs|select('==', 2)|list }}|{{ mixed|select('string')|list }}
{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|list }}|{{ people|rejectattr('age', 'eq', 30)|map(attribute='name')|list }}|{{ people|selectattr('tags')|map(attribute='name')|list }}|{{ people|selectattr('tags', 'defined')|list|length }}|{{ messages|selectattr('role', 'ne', 'system')|map(attribute='content')|join(',') }}
{{ d|dictsort|map('first')|list }}|{{ {'B': 2, 'a': 1, 'C': 0}|dictsort }}|{{ {'B': 2, 'a': 1}|dictsort(true) }}|{{ {'B': 2, 'a': 1}|dictsort(by='value') }}|{{ {'B': 2, 'a': 1}|dictsort(reverse=true) }}
{{ '3'|int }}|{{ '3.7'|int }}|{{ 'x'|int }}|{{ 'x'|int(5) }}|{{ 'ff'|int(base=16) }}|{{ '0x1f'|int(base=16) }}|{{ 3.99|int }}|{{ true|int }}|{{ none|int(7) }}|{{ '1.5'|float }}|{{ 'q'|float }}|{{ 'q'|float(2.5) }}|{{ 3|float }}|{{ -3|abs }}|{{ -2.5|abs }}
{{ 2.5|round }}|{{ 3.5|round }}|{{ 42.55|round(1) }}|{{ 42.55|round(1, 'floor') }}|{{ 42.51|round(0, 'ceil') }}|{{ 2.675|round(2) }}|{{ 7|round }}|{{ 42.123|round(2)|string }}|{{ 1234.5|round(-2) }}
{{ text|indent }}|{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(2, blank=true) }}|{{ 'a\\nb'|indent('> ') }}|{{ 'a'|indent(3, first=true) }}
{{ 'one two  three'|wordcount }}|{{ '<a href="x">&\\'</a>'|escape }}|{{ '<b>'|e }}|{{ '<b>'|safe }}|{{ 5|string + '6' }}|{{ [1, 2, 3, 4, 5]|batch(2)|list }}|{{ [1, 2, 3]|batch(2, 'x')|list }}
{{ n is defined }} {{ missing is defined }} {{ missing is undefined }} {{ no is none }} {{ n is not none }} {{ name is string }} {{ n is string }} {{ d is mapping }} {{ xs is mapping }} {{ xs is sequence }} {{ d is sequence }} {{ name is sequence }} {{ n is sequence }} {{ missing is sequence }}
{{ xs is iterable }} {{ name is iterable }} {{ n is iterable }} {{ missing is iterable }} {{ no is iterable }} {{ t is true }} {{ n is true }} {{ false is false }} {{ t is boolean }} {{ n is boolean }} {{ n is integer }} {{ t is integer }} {{ f is float }} {{ n is number }} {{ t is number }} {{ f is number }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 1 is in [1, 2] }} {{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 2 is gt 1 }} {{ 2 is lessthan(1) }} {{ 1 is sameas 1 }} {{ x is not defined and t }} {{ t is sameas true }}
{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }}{% for i in range(2) %}{{ i }}{% endfor %}{{ range(10)|length }}
{{ 'a\\tb\\x41\\u00e9\\\\n\\'q\\"' }}|{{ "it's" }}|{{ 'multi' 'part' }}|{{ '\\d\\w' }}|{{ '\\101' }}|{{ 1_000 }}|{{ 1e3 }}|{{ 1.5e-7 }}|{{ 0.1 + 0.2 }}|{{ 100000000000000000000 }}
{{ (1, 2) }} {{ (1,) }} {{ () }} {{ [] }} {{ [[]] }} {{ {} }} {{ [none, true] }} {{ (1, 2)[0] }} {{ [1, 2,] }} {{ 1, 2 }}
{# a comment #}a{# more #}b {#- strip -#} c {{- ' d ' -}} e
{% if n == 1 %}one{% elif n == 3 %}three{% else %}other{% endif %}|{% if missing %}a{% elif no %}b{% else %}c{% endif %}|{% if xs and not empty %}ok{% endif %}
{% raw %}{{ not }} {% this %}{# is #}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  |
{{ messages[0].role }}{{ messages[-1]['content'] }}{{ messages[1:][0].content }}{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role[0] }}{% endfor %}{{ messages|length - 1 }}{{ (messages[n].role is defined) if messages[n] is defined else 'oob' }}
{{ 'x' if d.items is callable }}|{{ d.a|length }}|{{ d|length }}|{{ 'items' in d }}|{{ d.a.items()|list }}|{{ d.a.copy() }}
{{ joiner is defined }}{% set j = joiner('; ') %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %}
{{ (name | upper)[0:2] ~ (xs | length) }}{{ (xs | map('string') | join('')).startswith('12') }}{{ 'a,b'.split(',')|length }}{{ name|upper|lower|length }}
{{ missing == none }}{{ missing == missing2 }}{{ missing ~ 'x' }}{{ missing or 'y' }}{{ [missing]|length }}{{ missing|string|length }}{{ missing is none }}{{ missing != 1 }}
{{ [1, [2, {'a': (3,)}]] == [1, [2, {'a': (3,)}]] }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ [1] == (1,) }}{{ 1 != 2 != 1 }}{{ 'a' in ['a'] and 'b' not in 'abc' }}{{ {1: 'x'}[1.0] }}{{ {true: 'y'}[1] }}
{{ 'a' if false }}|{{ ('a' if false) is defined }}|{{ none.x }}|{{ xs.nope }}|{{ 'abc'.nope }}|{{ xs['a'] }}|{{ d[0] }}|{{ 'abc'['x'] }}
{{ z|map('upper')|list }}{{ no|select|list }}{{ false|selectattr('a')|list }}{{ empty|reject('odd')|list }}|{{ xs * 2 }}{{ -1 * xs }}{{ 'ab' * true }}|{{ f|wordcount }}{{ d|wordcount }}{{ uni|wordcount }}|{{ true|round(1) }}{{ 5|round(2) }}
{{ xs|tojson|length }}{{ [1.0, 2.5, 1e20]|tojson }}{{ "a\\u2028b\\/"|tojson }}{{ true|tojson }}{{ none|tojson }}{{ 'x'|tojson }}{{ (1, 2)|tojson }}
{{ '<{}>'.format(n) }}|{{ '{} {}'.format(name, s) }}|{{ '{1}{0}{1}'.format('a', 'b') }}|{{ '{x}-{y}'.format(x=1, y='z') }}|{{ '{{}}{}'.format(1) }}|{{ '{0[b]} {0[a][x][1]} {1[0]}'.format(d, xs) }}|{{ '{!r} {!s} {!a}'.format(name, quote, uni) }}|{{ '{m}'.format_map({'m': 5}) }}
{{ '[{:5}] [{:<5}] [{:>5}] [{:^5}] [{:*^7}] [{:.2}] [{:6.2}|'.format('ab', 'ab', 'ab', 'ab', 'ab', 'abcdef', 'abcdef') }}{{ '{:{}}|{:>{w}}'.format('a', 4, 'b', w=3) if false else '{:{w}}|'.format('a', w=4) }}
{{ '{:d} {:5d} {:<5d} {:05d} {:+d} {: d} {:,} {:_} {:x} {:X} {:o} {:b} {:#x} {:#b} {:c}'.format(42, 42, 42, 42, 42, 42, 1234567, 1234567, 255, 255, 8, 5, 255, 5, 65) }}|{{ '{:08,} {:=+8d} {:^+9,d}'.format(1234, 7, 12345) }}|{{ '{:d} {:5}|{:n}'.format(true, n, big) }}
{{ '{:f} {:.2f} {:.0f} {:e} {:.3e} {:g} {:.3g} {:%} {:.1%} {:10.3f} {:<10.2f} {:+.1f} {:,.2f} {:010.2f} {:E} {:G}'.format(1.5, 2.675, 0.5, 12345.678, 0.00012, 1234567.0, 0.00001234, 0.25, 0.1234, 3.14159, 2.5, 1.25, 1234567.891, -3.14159, 1e10, 1e-10) }}
{{ '{:.3} {:5} {:.1} {:10}|{:.10}'.format(3.14159, 1.5, 25.0, 1e20, 0.1) }}|{{ '{:.2f} {:g} {:e}'.format(3, 7, 10) }}|{{ '{}{}{}'.format(none, true, [1, 'a']) }}|{{ '{:5}|{:>6}'.format(true, false) }}|{{ '{0:>{1}}'.format('x', 4) }}
{{ '%s and %s' % (n, name) }}|{{ '%s' % n }}|{{ '%d%%' % 5 }}|{{ '%5.1f|%-5s|%05d|%+d|%x|%X|%o|%e|%g' % (1.25, 'a', 42, 3, 255, 255, 8, 1234.5, 0.0001) }}|{{ '%(a)s-%(b)03d' % {'a': 'x', 'b': 7} }}|{{ '%r %c %i' % ('q', 65, 3.9) }}|{{ '%s' % [1, 2] }}|{{ '%.2s|%5s|' % ('abc', 'z') }}
{{ '%s %s'|format(1, 'b') }}|{{ '%(x)s'|format(x=3) }}|{{ '%.3f'|format(f) }}|{{ 'abc'|center(9) }}|{{ 'ab'|center(5) }}|{{ 'abcd'.center(7, '*') }}|{{ 'abc'.center(6, '-') }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ '-5'.zfill(4) }}|{{ '5'.zfill(3) }}|{{ 'aBc'.swapcase() }}
{{ 'the quick brown fox jumps'|truncate(12) }}|{{ 'the quick brown fox jumps'|truncate(12, true) }}|{{ 'the quick brown fox'|truncate(14) }}|{{ 'the quick brown fox'|truncate(14, false, '…', 0) }}|{{ 'foo bar baz qux'|truncate(11, true, leeway=0) }}|{{ 'foo bar baz qux'|truncate(9, end='!') }}|{{ 'short'|truncate }}|{{ (uni * 40)|truncate(20, true)|length }}|{{ (uni ~ uni)|truncate(12, true, '') }}
{{ xs is sameas xs }}|{{ xs is sameas [1, 2, 3] }}|{{ d is sameas d }}|{{ d.a is sameas(d.a) }}|{{ {} is sameas {} }}|{{ missing is sameas missing }}|{{ none is sameas no }}|{{ 1 is sameas 1.0 }}|{{ 1 is sameas true }}|{{ 'a' is sameas 'a' }}|{{ n is sameas 3 }}|{{ false is sameas false }}|{{ d is sameas xs }}|{{ name is sameas name }}
{{ 'a' is escaped }}|{{ ('a'|safe) is escaped }}|{{ ('<'|escape) is escaped }}|{{ ('<'|e) is escaped }}|{{ 5 is escaped }}|{{ 'odd' is test }}|{{ 'nope' is test }}|{{ 'upper' is filter }}|{{ 'nope' is filter }}|{{ '<&>'|forceescape }}
{{ {(1, 2): 'x'}[(1, 2)] }}|{{ {(1, 2): 'x'}[1, 2] }}|{{ {(1, 'a', (none, 2.0)): 'y'}[(true, 'a', (none, 2))] }}|{{ {('a', 1): 1}|length }}|{{ {(1,): 'z'} }}|{{ {(): 'e'}[()] }}|{{ {(): 'e'}[] }}|{{ xs[] is defined }}|{{ ('1', 2) in {('1', 2): 0} }}|{{ (1, '2') in {('1', 2): 0} }}|{{ {('ab', 'c'): 1}[('a', 'bc')] is defined }}|{{ [(1, 2), (1, 2), (2, 1)]|unique|list }}
{% if false %}{{ xs|nofilter }}{{ xs is notest }}{{ nofunction() }}{% endif %}ok|{% if z %}{{ n|nofilter('a')|upper }}{% elif n is odd %}odd{% else %}{{ n|nofilter }}{% endif %}|{{ n if n is odd else n|nofilter }}|{{ (n|nofilter) if z else 'no' }}{% if true %}{% if z %}{% set q = xs|from_json %}{% endif %}{% endif %}|{% for x in xs %}{% if x > 5 %}{{ x|nofilter }}{% endif %}{{ x }}{% endfor %}|{% macro q(a) %}{% if a %}{{ a|nofilter }}{% endif %}k{% endmacro %}{{ q(false) }}
""".strip("\n").split("\n")

# Cases that need several lines or whose white space matters.
CASES += [
    "  {% if true %}\n  a\n  {% endif %}\nb\n", "{% if true %}\n\na{% endif %}\n\n", "x {%- if true -%}\n y \n{%- endif -%}\n z", "  {%+ if true %}a{% endif +%}\nb", "a\n  {# c #}\nb",
    "a  {# c #}\nb", "{{ n }}\n{{ n }}\n", "{{ n -}}\n\n  x", "a\n \t{%- set q = 1 %}\nb{{ q }}", "{% for x in xs %}\n  {{ x }}\n{% endfor %}\nend", "\r\na\r\n{% if 1 %}\r\nb\r\n{% endif %}", "a\n\n", "\n", "",
    "{%- for m in messages %}\n    {%- if m.role == 'user' %}\n        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}\n    {%- else %}\n        {{- m.content | trim }}\n    {%- endif %}\n{%- endfor %}\n{%- if n > 2 %}\n    {{- 'gen' }}\n{%- endif %}",
    "{% set block %}\n line {{ n }}\n{% endset %}[{{ block }}]{% set up | upper | trim %} abc {% endset %}[{{ up }}]", "   {{ n }}   {% if 1 %}   x   {% endif %}   ", "{% if 1 %}  \n  {% if 1 %}\n x\n  {% endif %}\n{% endif %}", "{% raw %}\n a {{ x }}\n{% endraw %}\nb", "a {% raw -%}  b  {% endraw %} c",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}", "{ {{ n }} } { % }{", "a{{ 1 }}{", "{{\n  n\n  +\n  1\n}}", "{% set x = {'a': {'b': {}}} %}{{ x }}{{ {'a': {'b': 1}} }}", "{%- macro a() %}\n  x\n{%- endmacro %}\n\n{{ a() }}|", "{#- c -#}\n\n  x {#- d #}\ny", "\t{% if 1 %}\tx\n\t{% endif %}\ty",
]

ERRORS = [
    "{{ missing.x }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ n.x.y }}", "{{ raise_exception('bad ' ~ n) }}", "{{ 1 / 0 }}", "{{ 5 % 0 }}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{{ xs.append(1) }}",
    "{{ d.update({}) }}", "{{ 'a' < 1 }}", "{{ 1 in 5 }}", "{{ 'x' in none }}", "{{ n|length }}", "{{ 'a'.split('') }}", "{{ missing|tojson }}", "{{ 1 in 'abc' }}", "{% set q = 1 %}{% set q.a = 2 %}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{{ xs|nofilter }}",
    "{{ xs is notest }}", "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{{ 1 + }}", "{{ (1 }}", "{{ 'a }}", "{% nope %}", "{# open", "{{ a b }}", "{% for x %}{% endfor %}", "{{ n() }}", "{% set 1 = 2 %}", "{{ [1, 2 }}", "{% raw %}x", "{{ range(1000000) }}", "{{ n[1:2:0] if false else xs[::0] }}", "{{ {[]: 1} }}", "{{ -'a' }}",
    "{{ 'a'.nope() }}", "{{ d['nope']['x'] }}", "{{ d|items|first|first|items|list }}", "{% break %}", "{{ xs|indent }}", "{{ n|indent }}", "{{ no[::-1] }}", "{{ d[1:] }}", "{{ missing|int }}", "{{ missing|float }}", "{{ missing[1:] }}", "{{ xs * 'a' }}", "{{ xs * 1.5 }}",
    "{{ '{}'.format() }}", "{{ '{a}'.format(1) }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}", "{{ '{} {0}'.format(1) }}", "{{ '{:d}'.format(1.5) }}", "{{ '{:d}'.format(name) }}", "{{ '{:5}'.format(xs) }}", "{{ '{!x}'.format(1) }}", "{{ '%d' % name }}", "{{ '%s %s' % 1 }}", "{{ '%s' % (1, 2) }}", "{{ '%q' % 1 }}", "{{ '%(a)s' % 1 }}", "{{ 'abc'|truncate(2) }}", "{{ 'a'.center(5, 'ab') }}", "{% if true %}{{ xs|nofilter }}{% endif %}", "{{ xs|nofilter if true else 1 }}", "{% if xs is notest %}{% endif %}", "{% for x in xs %}{{ x|nofilter }}{% endfor %}", "{{ {([],): 1} }}", "{{ xs[1, 2].x }}", "{% if n %}{{ nofunction() }}{% endif %}",
]


def main():
    env = environment()
    out = []
    for src in CASES:
        try:
            out.append({"template": src, "output": env.from_string(src).render(**copy.deepcopy(VARS))})
        except Exception as e:
            raise SystemExit(f"{src!r}: {e!r}") from e
    for src in ERRORS:
        try:
            text = env.from_string(src).render(**copy.deepcopy(VARS))
        except Exception:
            out.append({"template": src, "error": True})
        else:
            raise SystemExit(f"no error from {src!r}: {text!r}")
    with open("goldens.json", "w") as f:
        f.write('{"vars": ' + json.dumps(VARS, ensure_ascii=False) + ',\n"cases": [\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in out))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
