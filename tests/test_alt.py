"""Alternative texts: which images have none, and that nothing else of a file changes, byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import numpy as np
import pytest
from PIL import Image

from saywhere.alt import CAUTIOUS, Document, checked, compose, find_in_html, find_in_markdown
from saywhere.images import MissingImageError
from saywhere.regions import Regions
from tests import photographs
from tests.stubs import StubModel, load_by

NEW = "a 'dog' & \"two\" <cats>"
AS_HTML = "a &#x27;dog&#x27; &amp; &quot;two&quot; &lt;cats&gt;"
AS_MARKDOWN = "a 'dog' \\& \"two\" \\<cats\\>"


def filled(path: Path, text: str) -> str:
    """A document whose images without a text have one."""
    path.write_bytes(text.encode())
    document = Document.read(path)
    return document.with_texts([(image, NEW) for image in document.images if image.source and image.alt is None])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<p><img src="a.jpg"></p>', '<p><img@ src="a.jpg"></p>'),
        ("<IMG\r\n\tSRC=a.jpg\r\n>\r\n", "<IMG@\r\n\tSRC=a.jpg\r\n>\r\n"),
        ('<img src="a.jpg"/><img src=\'b c.jpg\' >', '<img@ src="a.jpg"/><img@ src=\'b c.jpg\' >'),
        ('<img alt="" src=a.jpg><img alt src=b.jpg><img src=c.jpg role=none><img aria-hidden="true" src=d>', None),
        ('<img aria-label="a dog" src=a.jpg><img aria-labelledby=b src=a.jpg><img aria-label src=a.jpg>',
         '<img aria-label="a dog" src=a.jpg><img aria-labelledby=b src=a.jpg><img@ aria-label src=a.jpg>'),
        ('<img alt=" " src=a.jpg>', None),
        ('<picture><source srcset="b.webp"><img srcset="a.jpg 1x, b.jpg 2x"></picture>',
         '<picture><source srcset="b.webp"><img@ srcset="a.jpg 1x, b.jpg 2x"></picture>'),
        ('<svg><title><img src="a.jpg"></title><image href="a.jpg"/></svg><img src="a.jpg">',
         '<svg><title><img src="a.jpg"></title><image href="a.jpg"/></svg><img@ src="a.jpg">'),
        ("<!-- <img src=a.jpg> --><script>x = '<img src=a.jpg>'</script><style>/*<img src=a>*/</style>", None),
        ("<!-- <img src=a.jpg>", None),
        ('<a title="<img src=a.jpg>" href=x>y</a><img src="a>b.jpg">',
         '<a title="<img src=a.jpg>" href=x>y</a><img@ src="a>b.jpg">'),
        ("<img src=a.jpg <p>b</p> < 5 <img src=c.jpg>", "<img src=a.jpg <p>b</p> < 5 <img@ src=c.jpg>"),
        ('<img src="a.jpg', None),
        ('{{ "<img src=a.jpg>" }}{% if x > 1 %}<img src="a.jpg">{% endif %}{# <img src=b> #}',
         '{{ "<img src=a.jpg>" }}{% if x > 1 %}<img@ src="a.jpg">{% endif %}{# <img src=b> #}'),
        ('<img src="{{ url("a.jpg") }}"><img {{ more }} src=a.jpg><img src="a.jpg" class="{% if a > b %}{% fi %}">',
         '<img src="{{ url("a.jpg") }}"><img {{ more }} src=a.jpg><img@ src="a.jpg" class="{% if a > b %}{% fi %}">'),
        ('<%= image_tag "x" if 2 > 1 %><img src="<%= path %>"><img src=a.jpg><?php echo "<img src=a.jpg>";',
         '<%= image_tag "x" if 2 > 1 %><img src="<%= path %>"><img@ src=a.jpg><?php echo "<img src=a.jpg>";'),
        ('<imgx src=a.jpg></img><image src=a.jpg>', None),
        *((f'<img src="a.jpg" {bound}><img src=b.jpg>', f'<img src="a.jpg" {bound}><img@ src=b.jpg>') for bound in (
            ':alt="x"', "v-bind:alt='x'", 'x-bind:alt="x"', '[alt]="x"', '[attr.alt]="x"', 'th:alt="#{x}"',
            'bind:alt=x', 'th:alt-title="#{x}"', 'data-th-alt="${x}"', 'ng-attr-alt="{{ x }}"', 'bind-alt="x"',
            'alt.bind="x"', 'alt={x}', 'onLoad={() => x > 1} alt={`${a > b}`}', 'alt={{ x }}', '{alt}', '{...rest}',
            'v-bind="rest"', 'th:attr="alt=${x}"')),
        ('<img src={x}/><img src={{ x }}><img src="{x}.jpg"><img :src="x"><img src=a.jpg th:src="@{x}"><img [src]="x">'
         '<img src="<c:url value="/a.jpg"/>"><img src="<c:url value=\'/a.jpg\'/>">',
         None),
        ('<img src=a.jpg data-alt=x altitude=3 data-src-size=2 style="a{">', '<img@ src=a.jpg data-alt=x altitude=3 '
         'data-src-size=2 style="a{">'),
    ],
)  # fmt: skip
def test_html(before: str, after: str | None, tmp_path: Path) -> None:
    new = filled(tmp_path / "a.html", before)
    assert new == (before if after is None else after.replace("@", f' alt="{AS_HTML}"'))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('# A\n\n![](a.jpg) and ![ a ](b.jpg "title")\n', '# A\n\n![@](a.jpg) and ![ a ](b.jpg "title")\n'),
        ("[![](a.jpg)](x.html)\r\n![](<a b.jpg>)\r\n", "[![@](a.jpg)](x.html)\r\n![@](<a b.jpg>)\r\n"),
        ("![][one] ![one][] ![one]\n\n[one]: a.jpg 'title'\n", "![@][one] ![one][] ![one]\n\n[one]: a.jpg 'title'\n"),
        ("`![](a.jpg)` ``x ` ![](a.jpg)`` ![](a_(1).jpg) \\![](a.jpg)",
         "`![](a.jpg)` ``x ` ![](a.jpg)`` ![@](a_(1).jpg) \\![](a.jpg)"),
        ("```html\n![](a.jpg)\n<img src=a.jpg>\n```\n~~~~\n![](b)\n~~~\n![](c)\n~~~~\n![](d.jpg)",
         "```html\n![](a.jpg)\n<img src=a.jpg>\n```\n~~~~\n![](b)\n~~~\n![](c)\n~~~~\n![@](d.jpg)"),
        ("text\n\n    ![](a.jpg)\n\n- item\n\n    ![](b.jpg)\n",
         "text\n\n    ![](a.jpg)\n\n- item\n\n    ![@](b.jpg)\n"),
        ("---\ncover: ![](a.jpg)\n---\n![](b.jpg)<!-- ![](c.jpg) -->",
         "---\ncover: ![](a.jpg)\n---\n![@](b.jpg)<!-- ![](c.jpg) -->"),
        ("+++\ncover = '![](a.jpg)'\n---\n![](a.jpg)\n+++\n![ ](b.jpg)",
         "+++\ncover = '![](a.jpg)'\n---\n![](a.jpg)\n+++\n![@](b.jpg)"),
        ("```\n```\n    ![](a)\n# b\n    ![](a)\n***\n    ![](a)\n\n![](b)\n    ![](c)\n",
         "```\n```\n    ![](a)\n# b\n    ![](a)\n***\n    ![](a)\n\n![@](b)\n    ![@](c)\n"),
        ("- b\n\n      ![](a)\n\n  ![](b)\n1. c\n\n       <img src=a>\n\n> ![](d)\n>\n>     ![](a)\n",
         "- b\n\n      ![](a)\n\n  ![@](b)\n1. c\n\n       <img src=a>\n\n> ![@](d)\n>\n>     ![](a)\n"),
        ("<pre>![](a)</pre>\n\n<pre>\n![](a)\n\n![](a)\n</pre>\n<div>\n![](b)\n</div>\n\n<pre>\r<img src=c></pre>",
         "<pre>![](a)</pre>\n\n<pre>\n![](a)\n\n![](a)\n</pre>\n<div>\n![@](b)\n</div>\n\n<pre>\r<img% src=c></pre>"),
        ('![](a "b \\" c") ![](d \'e \\\' f\')\r![x [y] z](g) \\<img src=h>`<img src=i>` ![b](j) | ![](k) | x\n',
         '![@](a "b \\" c") ![@](d \'e \\\' f\')\r![x [y] z](g) \\<img src=h>`<img src=i>` ![b](j) | ![@](k) | x\n'),
        ("\ufeff```\n![](a)\n```\n\f\n\t![](b)\n> - ![](c)![\n>   ](d)\n",
         "\ufeff```\n![](a)\n```\n\f\n\t![@](b)\n> - ![@](c)![@](d)\n"),
        ("---\n---\n![](a.jpg){alt=x} ![](b.jpg){width=3} ![](c.jpg){: .d alt='x'}",
         "---\n---\n![](a.jpg){alt=x} ![@](b.jpg){width=3} ![](c.jpg){: .d alt='x'}"),
        ("x[^1]\n\n[^1]: ![](a.jpg)\n", "x[^1]\n\n[^1]: ![@](a.jpg)\n"),  # a footnote
        ("".join("  " * deep + "- x\n" for deep in range(14)) + " " * 28 + "![](a.jpg)",
         "".join("  " * deep + "- x\n" for deep in range(14)) + " " * 28 + "![@](a.jpg)"),
        ("![]({{ site.url }}/a.jpg) ![][none] ![]( a.jpg )", "![]({{ site.url }}/a.jpg) ![][none] ![@]( a.jpg )"),
    ],
)  # fmt: skip
def test_markdown(before: str, after: str, tmp_path: Path) -> None:
    assert filled(tmp_path / "a.md", before) == after.replace("@", AS_MARKDOWN).replace("%", f' alt="{AS_HTML}"')
    both = list(find_in_markdown('![](a.jpg)\n<img src="b.jpg">\n`<img src="c.jpg">`\n'))
    assert [image.source for image in both] == ["a.jpg", "b.jpg"]
    both = list(find_in_markdown('![]( <img/a.jpg> "t")<img src=b.jpg>'))  # a path, and an element
    assert [image.source for image in both] == ["img/a.jpg", "b.jpg"]


CODE = "<img src=a.jpg>\n\n{{ x }}<% y %>![](b.jpg)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{% highlight html %}\n", "{% endhighlight %}"), ("{%- codeblock a:b -%}", "{%- endcodeblock -%}"),
        ("{% raw %}\n", "{% endraw %}"), ("{%verbatim%}{% if x %}", "{%endverbatim%}"),
        ("{% comment 'why' %}", "{% endcomment %}"), ("{{< highlight html >}}\n", "{{< /highlight >}}"),
        ('{{% highlight html "linenos=1" %}}', "{{%/highlight%}}"), ("{#", "#}"), ("{#-\n", "-#}"),
        ("{{!-- ", " --}}"), ("{{~!--", "--~}}"), ("{{-- ", " --}}"), ("{/* ", " */}"), ("{ /*\n", "*/\n}"),
        ("{{/* ", " */}}"), ("{{- /* ", " */ -}}"), ("@* ", " *@"), ("{* ", " *}"), ("<%-- ", " --%>"),
    ],
)  # fmt: skip
def test_code_and_comments_between_tags_of_templates_stay(before: str, after: str, tmp_path: Path) -> None:
    assert filled(tmp_path / "a.html", f"{before}{CODE}{after}<img src=c>") == (
        f'{before}{CODE}{after}<img alt="{AS_HTML}" src=c>'
    )
    page = f"text\n\n{before}{CODE}{after}\n\n![](c)\n"
    assert filled(tmp_path / "a.mdx", page) == page.replace("![](c)", f"![{AS_MARKDOWN}](c)")
    for stray in (f"{before}{CODE}", f"{CODE}{after}", f"`{before}`\n\n{CODE}\n\n`{after}`"):  # not both tags
        assert AS_MARKDOWN in filled(tmp_path / "a.md", stray)
    again = f"{before}<img src=c>{before}{CODE}{after}"  # of an opening mark alone nothing is known
    assert filled(tmp_path / "a.html", again) == again.replace("<img src=c>", f'<img alt="{AS_HTML}" src=c>')


def test_images_that_templates_show_as_they_are_stay_and_are_counted(tmp_path: Path) -> None:
    for name in ("raw", "verbatim"):
        inside = f"{{% {name} %}}\n\n{CODE}<img src=x alt=''>\n\n{{% end{name} %}}\n\n"
        found = list(find_in_html(f"<img src=d>{inside}<img src=c>"))
        assert [image.source for image in found] == ["d", None, "c"]
        found = list(find_in_markdown(f"![](d)\n\n{inside}![](c)\n"))
        assert [image.source for image in found] == ["d", None, None, "c"]
    assert not list(find_in_html("{% comment %}<img src=a>{% endcomment %}{# {% raw %}<img src=a>{% endraw %} #}"))


def test_names_of_headings_open_no_comment(tmp_path: Path) -> None:
    page = "# A {#setup}\n\n![](a.jpg)\n\n## B {#b .c}\n\n<img src=b> C#{C#}\n"
    for name in ("a.md", "a.qmd"):
        new = page.replace("![]", f"![{AS_MARKDOWN}]").replace("<img", f'<img alt="{AS_HTML}"')
        assert filled(tmp_path / name, page) == new


def test_comments_with_one_tag_and_front_matter_stay(tmp_path: Path) -> None:
    for text in ("{{! <img src=a.jpg> }}", "<%# <img src=a.jpg> %>", "---\n<img src=a.jpg>\n---\n"):
        for name in ("a.html", "a.md"):
            new = filled(tmp_path / name, f"{text}<p><img src=b>")
            assert new == f'{text}<p><img alt="{AS_HTML}" src=b>'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (r"\(\sqrt{{x}+1}\)", "a^{b^{c}}"), ("<code>{{</code>", "}}"), ("a {% b", "it's %} 'c'"), ("1 <% 2", "3 %> 4"),
        ("<code><? </code>", ""), ("<? x", "?>"), ("a <%= 'tis", "%>"),
        ("a@*.org", "*@b.org"), ("<script>x = {*[y]() {}}</script>", "<script>/** @param {?|*} a */</script>"),
    ],
)  # fmt: skip
def test_marks_that_are_no_templates_hide_no_image(before: str, after: str, tmp_path: Path) -> None:
    page = f'{before} <a href="x"><img src="a.jpg"></a>\n{after}'
    for name in ("a.html", "a.md"):
        assert filled(tmp_path / name, page) == page.replace("<img", f'<img alt="{AS_HTML}"')


@pytest.mark.parametrize(
    "tag",
    [
        '{{ x\n\n| default({"a": {"b": "<img src=a.jpg>"}}) }}', "{{ '}' ~ '<img src=a.jpg>' }}",
        '{% set x = "it\'s\n<img src=a.jpg>" %}', '<% out.print("<img src=\\"a.jpg\\">");\n\n// don\'t\n %>',
        "<? echo '<img src=a.jpg>' ?>", "<?php // don't\n\n$x = <<<A\n<img src=a.jpg>\nA; ?>", "{{{ x `\n<img>` }}}",
    ],
)  # fmt: skip
def test_templates_have_images_in_their_strings(tag: str, tmp_path: Path) -> None:
    page = f"{tag}<img src=b>"
    assert filled(tmp_path / "a.html", page) == page.replace("<img src=b", f'<img alt="{AS_HTML}" src=b')
    assert filled(tmp_path / "a.php", "<? echo '<img src=a.jpg>';") == "<? echo '<img src=a.jpg>';"


@pytest.mark.parametrize(
    "mark",
    [
        "{{",
        '<p>{{ "\\',
        "<p>{{ " + '"\\' * 9,
        "{{ x ",
        "{{ '",
        "{% ",
        '<% "',
        "<? ",
        "{# ",
        "{{!-- ",
        "{* ",
        "@* ",
        "{/* ",
        "{% raw %}",
        "<%",
    ],
)
def test_unclosed_marks_take_linear_time(mark: str) -> None:
    """Quadratic time would take minutes, so that the limit does not depend on the load of the machine."""
    begun = time.process_time()
    assert [image.source for image in find_in_html(f"{mark * 50_000}\n<img src=a.jpg>")] == ["a.jpg"]
    assert time.process_time() - begun < 10


def test_the_image_that_a_script_loads_counts_and_not_its_placeholder() -> None:
    found = find_in_html('<img src="data:image/gif;base64,R0" data-src="a.jpg"><img data-src="{{ b }}" src="c.jpg">')
    assert [image.source for image in found] == ["a.jpg", None]
    for lazy in ("data-src=a.jpg", "data-lazy-src=a.jpg", "data-original=a.jpg", 'data-srcset="a.jpg 320w, b.jpg 2x"',
                 'data-lazy-srcset="a.jpg, b.jpg 2x"', "data-src='' data-original=a.jpg"):  # fmt: skip
        assert [image.source for image in find_in_html(f"<img src=pixel.png {lazy}>")] == ["a.jpg"]
    for other in ("data-original=true", 'data-src="1"', 'data-srcset="{{ b }}"', "data-lazy-srcset='<%= b %> 2x'"):
        assert [image.source for image in find_in_html(f"<img src=a.jpg {other}>")] == ["a.jpg"]
    sets = ("a.jpg, b.jpg 2x", "\n a.jpg\n1x", "a.jpg", "{{ a }} 2x")
    found = [image.source for one in sets for image in find_in_html(f'<img srcset="{one}">')]
    assert found == ["a.jpg", "a.jpg", "a.jpg", None]


def test_what_a_file_holds_is_told_by_its_ending(tmp_path: Path) -> None:
    page = "![](a.jpg)\n`<img src=b>` <img src=c>\n"
    html = page.replace("<img", f'<img alt="{AS_HTML}"')
    for name in ("a.md.tmpl", "a.md.j2", "a.QMD", "a.Rmd"):
        assert filled(tmp_path / name, page) == (
            f'![{AS_MARKDOWN}](a.jpg)\n`<img src=b>` <img alt="{AS_HTML}" src=c>\n'
        )
    for name in ("a.html.tmpl", "a.j2", "a.vue", "a.svelte", "a.jsp"):
        assert filled(tmp_path / name, page) == html


def test_comments_and_strings_of_javascript_stay(tmp_path: Path) -> None:
    page = """// <img src="a">
const x = {a: '<img src="a">', b: "<img src='a'>"}; /* <img src="a"> */
const f = (y) => '<img src="a">' + `
<img src="a">`;
export default () => <p title="https://x/y
  "> it's {cond ? "<img src='a'>" : f('<img src="a">')} {/* <img src="a" /> */} "a" <img src="b" /> 'c'
  <a href="//x"><img src="b" /></a></p>;
"""
    new = page.replace('<img src="b"', f'<img alt="{AS_HTML}" src="b"')
    assert [filled(tmp_path / name, page) for name in ("a.jsx", "a.tsx", "a.astro")] == [new] * 3
    page = '{#if x}<img src="b">{:else}{@html "<img src=a>"}{/if}'
    new = page.replace('<img src="b"', f'<img alt="{AS_HTML}" src="b"')
    assert filled(tmp_path / "a.svelte", page) == new


@pytest.mark.parametrize(
    "code",
    [
        "const html =\n  \"<img src='a.jpg'>\";", "f([\n  \"<img src='a.jpg'>\",\n]);",
        "f(1,\n  \"<img src='a.jpg'>\");",
        "x &&\n  \"<img src='a.jpg'>\";", "throw \"<img src='a.jpg'>\";", "f(1,\n  '<img src=\"a.jpg\">');",
        "/\"/.test(x) ? \"<img src='a.jpg'>\" : \"\"", 'x = "<img class=" + c + " src=\'a.jpg\'>"',
        "x = \"<img src='a.jpg'\" + y + '>'", "x = \"\\\n<img src='a.jpg'>\\\n\"", 'x = "<img src=\\"a.jpg\\">"',
    ],
)  # fmt: skip
def test_strings_of_javascript_stay_and_their_images_are_counted(code: str, tmp_path: Path) -> None:
    page = f'const tag = "<script>";\n{code}\nexport default () => <img src="b.jpg" />;\n'
    for name in ("a.jsx", "a.tsx"):
        assert filled(tmp_path / name, page) == page.replace('<img src="b', f'<img alt="{AS_HTML}" src="b')
        assert [image.source for image in Document.read(tmp_path / name).images] == [None, "b.jpg"]


def test_a_text_that_names_a_tag_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "a.tsx").write_text('<p><img src="a.jpg" alt="a <b> or <img>" /><img src="b.jpg" alt="<p>" /></p>')
    document = Document.read(tmp_path / "a.tsx")
    new = document.with_texts([(image, "n") for image in document.images if image.source])
    assert new == document.text.replace('"<p>"', '"n"')


def test_double_quotes_around_a_tag_in_mdx_stay(tmp_path: Path) -> None:
    page = "export const a = \"<img src='a.jpg'>\";\n\n<p><img src='b.jpg' /></p>\n"
    new = page.replace("<img src='b", f'<img alt="{AS_HTML}" src=\'b')
    assert filled(tmp_path / "a.mdx", page) == new


@pytest.mark.parametrize(
    "prose",
    [
        'Home // <img src="a.jpg">', 'She said: "look <img src="a.jpg"> there"',
        "don't <img src=\"a.jpg\"> can't", "'tis <img src=\"a.jpg\"> isn't",
        '6" <img src="./a.jpg"> 7"', "(see: 'look <img src='a.jpg'> there')",
    ],
)  # fmt: skip
def test_quotes_in_prose_hide_no_image(prose: str, tmp_path: Path) -> None:
    for name in ("a.astro", "a.jsx", "a.svelte"):
        page = f"<p>{prose}</p>"
        assert filled(tmp_path / name, page) == page.replace("<img", f'<img alt="{AS_HTML}"')


@pytest.mark.parametrize(
    "closed",
    [
        '<textarea name="x" rows={3} />', "<script/>", "<iframe />", '<title a="b" />', '<Script src="x" />',
        '<Title text="x">', "<Style>x</Style>",
    ],
)  # fmt: skip
def test_images_behind_a_closed_element_and_components_are_found(closed: str, tmp_path: Path) -> None:
    page = f'<div>{closed}\n<img src="a.jpg" /></div>\n'
    for ending in ("tsx", "jsx", "svelte", "vue", "astro", "mdx", "xhtml"):
        assert filled(tmp_path / f"a.{ending}", page) == page.replace("<img", f'<img alt="{AS_HTML}"')
    page = f"{closed}\n\n![](a.jpg)\n"
    assert AS_MARKDOWN in filled(tmp_path / "b.mdx", page)
    (tmp_path / "b.xhtml").write_text(f'{closed}<base href="b/"/>')
    assert Document.read(tmp_path / "b.xhtml").base == "b/"
    assert not list(find_in_html("<textarea /><img src=a.jpg>")) and not list(find_in_html("<TITLE><img src=a.jpg>"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1251"])
def test_other_bytes_stay_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    words = "Ж" if encoding == "cp1251" else "é"
    text = f'<meta charset="{"windows-1251" if encoding == "cp1251" else "x"}">{words}<img src=a.jpg>{words}\r\n\r<p>'
    path = tmp_path / "a.html"
    path.write_bytes(text.encode(encoding))
    document = Document.read(path)
    assert document.text.encode(document.encoding) == text.encode(encoding)
    new = document.with_texts([(document.images[0], "a dog…")]).encode(document.encoding)
    alt = "a dog&#8230;" if encoding == "latin-1" else "a dog…"
    assert new == text.replace("<img", f'<img alt="{alt}"').encode(encoding)


def test_texts_that_are_there_are_replaced_when_asked_for() -> None:
    text = "<img src='a.jpg' alt='x &amp; y'><img src=b.jpg alt=z>"
    found = list(find_in_html(text))
    assert [image.alt for image in found] == ["x & y", "z"]
    new = Document(Path("a.html"), text, "utf-8", found).with_texts([(image, "n") for image in found])
    assert new == '<img src=\'a.jpg\' alt="n"><img src=b.jpg alt="n">'


def test_a_text_is_the_sentence_and_sure_regions_that_it_does_not_name() -> None:
    phrases = ("a brown dog", "a red ball", "a fence", "grass", "a tree", "the sky")
    scores = np.array([0.9, 0.8, 0.7, 0.65, 0.6, 0.3])
    regions = Regions(9, 9, np.tile(np.array([0, 0, 5, 5], np.float32), (6, 1)), scores, phrases)
    assert compose("a dog on grass", regions) == "a dog on grass; a red ball, a fence, a tree"
    assert compose("a dog on grass", regions, 32) == "a dog on grass; a red ball"
    assert compose("a dog runs over the grass of a park", regions, 20) == "a dog runs over the…"
    assert compose("a dog", Regions.empty(9, 9)) == "a dog"
    doubtful = replace(regions, caption_scores=np.array([0.9, 0.2, 0.5, 0.9, 0.9, 0.9]))
    assert compose("a dog on grass", doubtful) == "a dog on grass; a fence, a tree"


def test_a_sentence_about_people_whom_no_region_shows_gives_way() -> None:
    boxes, scores = np.tile(np.array([0, 0, 5, 5], np.float32), (4, 1)), np.array([0.9, 0.8, 0.4, 0.2])
    regions = Regions(9, 9, boxes, scores, ("a mountain bike", "a fence", "a tree", "a person on the grass"))
    assert compose("a man is riding a bike", regions) == "a mountain bike; a fence"
    assert compose("a dog and a bike", regions) == "a dog and a bike; a fence"
    seen = replace(regions, captions=("a mountain bike", "a fence", "a child", ""))
    assert compose("a man is riding a bike", seen) == "a man is riding a bike; a fence"
    for nothing in (Regions.empty(9, 9), regions[3:], replace(regions, caption_scores=np.full(4, 0.2))):
        assert compose("a man is riding a bike", nothing) == "a man is riding a bike"
        assert compose("", nothing) == ""
    assert compose("", regions) == "a mountain bike; a fence"


@pytest.mark.parametrize(
    ("sentence", "phrases", "text"),
    [
        ("brown and white dog", ["a white dog", "a collar"], "brown and white dog; a collar"),  # the same noun
        ("an animal on grass", ["two dogs", "a bird"], "an animal on grass"),  # kinds, and what one is a kind of
        ("a policeman", ["a group of people in blue", "a car", "the cars", "a vehicle"], "a policeman; a car"),
        ("a frobnicator", ["the red frobnicator in a hat", "a man"], "a frobnicator; a man"),  # no noun of the tree
    ],
)
def test_a_region_whose_noun_the_text_names_adds_nothing(sentence: str, phrases: list[str], text: str) -> None:
    boxes = np.tile(np.array([0, 0, 5, 5], np.float32), (len(phrases), 1))
    assert compose(sentence, Regions(9, 9, boxes, np.full(len(phrases), 0.9), tuple(phrases))) == text


class Captions(StubModel):
    """A stub that writes one sentence, and counts how often it is asked."""

    asked = 0
    least: float | None = -1
    captioner: Any = SimpleNamespace(ngrams="some")

    def caption(self, images: list[Any], *, least_probability: float | None, attention: bool) -> list[str]:
        assert not attention
        self.asked += len(images)
        self.least = least_probability
        return [f"a picture of {image.width} pixels" for image in images]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Captions:
    stub = Captions()
    load_by(monkeypatch, lambda *_, **__: stub)
    monkeypatch.chdir(tmp_path)
    Path("site/sub").mkdir(parents=True)
    for name in ("site/a b.png", "site/sub/b.png"):
        photographs.quarters(64 if "sub" in name else 80, 32).save(name)
    return stub


run = partial(commands.run, "alt")


def test_the_command_shows_a_diff_and_writes_when_told_to(model: Captions) -> None:
    data = base64.b64encode(Path("site/sub/b.png").read_bytes()).decode()
    page = '<img src="a%20b.png?v=1">\r\n<img src="/sub/b.png" alt="o\nld">\r\n'
    page += f'<img src="data:image/png;base64,{data}">\r\n'
    page += '<img src="https://example.org/x.png">\r\n<img src="{{ x }}">\r\n<img alt="" src="none.png">'
    Path("site/index.html").write_bytes(page.encode())
    Path("site/sub/note.md").write_bytes(b"![](b.png)\n![](../a%20b.png)\n")
    done = run("site", "--root", "site", "--cache", "alt.jsonl")
    assert '-<img src="a%20b.png?v=1">\n+<img alt="a picture of 80 pixels' in done.stdout.replace("\r\n", "\n")
    assert (
        "4 drafts proposed, 1 left to templates, 1 on the network, left alone, 1 with a text already; a draft is a "
        "program's text: read each before it is published\n" in done.stderr
    )
    assert Path("site/index.html").read_bytes() == page.encode() and model.asked == 2
    digest = hashlib.blake2b(Path("site/a b.png").read_bytes(), digest_size=16).hexdigest()
    rows = {row["image"]: row["alt"] for row in map(json.loads, Path("alt.jsonl").read_text().splitlines())}
    assert rows[digest].startswith("a picture of 80 pixels") and len(rows) == 2
    done = run("site", "--root", "site", "--cache", "alt.jsonl", "--write", "--all")
    assert model.asked == 2
    assert re.sub("a picture of.*", "...", done.stdout).splitlines() == [
        "written: site/index.html", *(f"site/index.html:{line}: ..." for line in (1, 2, 3)),
        "written: site/sub/note.md", *(f"site/sub/note.md:{line}: ..." for line in (1, 2)),
    ]  # fmt: skip
    assert done.stderr.startswith("5 drafts written, 1 left to") and done.stderr.endswith("before it is published\n")
    written = Path("site/index.html").read_bytes().decode()
    assert 'alt="o' not in written and written.count("a picture of 64 pixels") == 2
    assert Path("site/sub/note.md").read_text().startswith("![a picture of 64 pixels")
    again = run("site", "--root", "site", "--write")
    assert (
        again.stdout == ""
        and again.stderr
        == "0 drafts written, 1 left to templates, 1 on the network, left alone, 5 with a text already\n"
    )


def test_an_image_that_does_not_show_what_its_caption_is_about_gets_its_best_region_or_nothing(
    model: Captions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The captioner writes "a yellow bird" for a damselfly, where ground finds no bird."""
    asked = list[list[str]]()

    def ground(image: Any, phrases: list[str]) -> Any:
        asked.append(phrases)
        return SimpleNamespace(captions=tuple(phrases) if image.width == 80 else ())

    for name, value in (("nouns", object()), ("encode", lambda images: images), ("ground", ground)):
        monkeypatch.setattr(model, name, value, raising=False)
    monkeypatch.setattr(model, "caption", lambda images, **_: ["two yellow birds sit on a log" for _ in images])
    Path("page.md").write_text("![](site/a%20b.png)\n![](site/sub/b.png)\n")
    done = run("page.md", "--write")
    first, second = Path("page.md").read_text().splitlines()
    assert first.startswith("![two yellow birds") and asked == [["a bird", "a yellow bird"]] * 2
    assert "bird" not in second and second != "![](site/sub/b.png)"  # the stub's best region
    monkeypatch.setattr(model, "describe", lambda images, top: [Regions.empty(64, 32) for _ in images])
    Path("page.md").write_text("![](site/sub/b.png)\n")
    done = run("page.md", "--write", "--cache", "alt.jsonl")
    assert Path("page.md").read_text() == "![](site/sub/b.png)\n"
    named = "no draft, because nothing is sure: page.md:1: site/sub/b.png\n"
    assert done.stderr == f"{named}0 drafts written, 1 without a draft\n"
    asked.clear()
    assert run("page.md", "--write", "--cache", "alt.jsonl").stderr == done.stderr and not asked


@pytest.mark.parametrize(
    ("sentence", "absent", "kept"),
    [
        ("a black umbrella and a dog on a bench", ["a dog", "a black umbrella"], "an umbrella"),
        ("a person sitting next to a black and white dog", ["a dog"], "a person"),
        ("a red and white bus on a street", ["a red and white bus"], "a bus on a street"),
        ("an orange cat sits in front of a tv", ["a tv"], "an orange cat"),
        ("two young girls are holding a cell phone", ["a cellphone"], "two young girls"),
        ("a yellow bird sits on a log", ["a bird"], ""),
        ("a group of people standing in a field", [], "a group of people standing in a field"),
        ("a man climbing a rock in the snow", ["a rock"], "a man"),
        ("a truck towing a dog", ["a dog"], "a truck"),
        ("a boy pushes a shopping cart on a street", ["a shopping cart"], "a boy"),
        ("a small white dog runs", ["a cabbage butterfly"], "a small white dog runs"),  # which is a "small white"
        ("a white bird flies over the water", ["a fly"], "a white bird flies over the water"),
        ("a football player on a field", ["a football"], "a football player on a field"),
        ("two brown dogs are playing", ["two brown dogs"], "two brown dogs are playing"),  # the colour is asked alone
        ("two brown dogs are playing", ["a brown dog"], "two dogs are playing"),
        ("a red or blue car and a green bus", ["a blue car", "a green bus"], "a red or blue car and a bus"),
        ("a light blue shirt on a man", ["a light blue shirt"], "a shirt on a man"),
        (
            "brown dogs in shade that is dark",
            ["a brown dog"],
            "dogs in shade that is dark",
        ),  # the last word is no tint of it
        ("the head of a hedgehog", ["a hedgehog"], ""),
        ("two men play a game of football", ["a football"], "two men"),
        ("something strange", ["something"], "something strange"),  # no noun of the tree
    ],
)
def test_a_caption_keeps_what_is_found(sentence: str, absent: list[str], kept: str) -> None:
    assert checked(sentence, lambda phrases: [each for each in phrases if each not in absent]) == kept


@pytest.mark.parametrize("captioner", [None, SimpleNamespace(ngrams=None)])  # of another program; without n-grams
def test_a_model_that_cannot_tell_probable_words_writes_whole_sentences(model: Captions, captioner: Any) -> None:
    model.captioner = captioner
    Path("page.md").write_text("![](site/sub/b.png)\n")
    assert "a picture of 64 pixels" in run("page.md").stdout and (model.asked, model.least) == (1, None)


@pytest.mark.parametrize(
    ("given", "least"), [((), CAUTIOUS), (("--set", "captioner.ngrams.least_probability=0"), None)]
)
def test_sentences_are_cautious_unless_the_model_is_told_otherwise(
    model: Captions, given: tuple[str, ...], least: float | None
) -> None:
    Path("page.md").write_text("![](site/sub/b.png)\n")
    run("page.md", *given)
    assert (model.asked, model.least) == (1, least)


def test_a_spacer_gets_no_text(model: Captions) -> None:
    for size in ((1, 1), (7, 400), (8, 8)):
        Image.new("RGB", size).save("site/dot.png")
        Path("page.md").write_text("![](site/dot.png)\n")
        done = run("page.md")
        assert ("1 too small, left alone" in done.stderr) == (min(size) < 8)
    assert model.asked == 1


@pytest.mark.parametrize(
    "drawing",
    ["<svg/>", "\ufeff<?xml version='1.0'?>\n<!-- a -->\n<svg>", "<!DOCTYPE svg [<!ENTITY a 'b'>]><svg a=''>"],
)
def test_svg_is_left_alone(model: Captions, drawing: str) -> None:
    Path("site/logo.svg").write_text(drawing, encoding="utf-8")
    data = base64.b64encode(drawing.encode()).decode()
    Path("page.md").write_text(f"![](site/logo.svg)\n![](data:image/svg+xml;base64,{data})\n")
    assert run("page.md").stderr == "0 drafts proposed, 2 SVG, left alone\n" and not model.asked
    Path("page.md").write_text("![](site/none.svg)\n")
    assert "page.md:1: site/none.svg: no such file" in run("page.md", code=1).stderr


def test_folders_are_searched_for_pages_that_people_write(model: Captions) -> None:
    kept = ("a.vue", "b.svelte", "c.astro", "d.jsx", "e.tsx", "f.jsp", "g.qmd", "h.Rmd", "i.md.tmpl", "sub/j.html")
    left = (
        "a.tmpl",
        "b.js",
        ".c.md",
        ".hidden/d.md",
        "node_modules/e/f.md",
        "sub/_site/g.md",
        "_build/h.md",
        "dist/i.md",
    )
    for name in (*kept, *left, "k.pug", "l.cshtml", "sub/m.pug", "dist/n.pug"):
        Path("site", name).parent.mkdir(parents=True, exist_ok=True)
        Path("site", name).write_text('\n<img src="/a%20b.png">\n')
    done = run("site", "--root", "site", "--write")
    assert [line[9:] for line in done.stdout.splitlines() if line.startswith("written")] == [f"site/{n}" for n in kept]
    assert done.stderr.startswith("note: neither HTML nor Markdown, left out: 1 .cshtml, 2 .pug\n10 drafts written; ")
    assert "1 draft " in run("site/sub/_site", "--root", "site").stderr
    assert "1 draft " in run("site/l.cshtml", "--root", "site").stderr


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1251", "utf-16"])
def test_the_diff_has_the_bytes_of_the_page_as_patch_needs(model: Captions, encoding: str) -> None:
    words = "Ж" if encoding == "cp1251" else "é"
    page = f'<meta charset="{"windows-1251" if encoding == "cp1251" else ""}">\r\n{words}\n<img src=a.png>{words}'
    Path("site/a b.png").rename("site/a.png")
    path = Path("site/a.html")
    path.write_bytes(page.encode(encoding))
    diff = run("site").stdout_bytes.replace(b"\n\\ No newline at end of file\n", b"\n").split(b"\n")
    assert diff[:2] == [b"--- site/a.html", b"+++ site/a.html"] and diff[2].startswith(b"@@ -1,")
    old, new = (b"\n".join(line[1:] for line in diff[3:] if line[:1] in mark) for mark in ((b" ", b"-"), (b" ", b"+")))
    assert old == path.read_bytes() == page.encode(encoding)
    run("site", "--write")
    assert new == path.read_bytes() != old


def test_a_file_with_other_names_is_read_once(model: Captions) -> None:
    Path("site/b.md").write_text("![](a%20b.png)\n")
    for link in ("a.md", "c.md", "sub/b.md"):
        Path("site", link).symlink_to(Path("site/b.md").absolute())
    Path("other").symlink_to("site")
    done = run("site", "other", "site/b.md", "--write")
    assert "1 draft written" in done.stderr and done.stdout.startswith("written: site/b.md\n")
    Path("site/b.md").write_text("![](a%20b.png)\n")
    assert run("site/c.md", "site/a.md", "--write").stdout.startswith("written: site/c.md\n")
    assert Path("site/c.md").is_symlink() and Path("site/b.md").read_text().startswith("![a picture")


def test_what_was_edited_meanwhile_is_not_written_over(model: Captions, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.md", "b.md"):
        Path("site", name).write_text("![](a%20b.png)\n")
    caption = model.caption

    def edit(*arguments: Any, **options: Any) -> Any:
        Path("site/a.md").write_text("Somebody's new text.\n")
        return caption(*arguments, **options)

    monkeypatch.setattr(model, "caption", edit)
    done = run("site", "--write", code=1)
    assert "site/a.md: was changed while this command ran" in done.stderr
    assert done.stderr.startswith("1 draft written, 1 skipped; ") and "site/a.md" not in done.stdout
    assert Path("site/a.md").read_text() == "Somebody's new text.\n"
    assert Path("site/b.md").read_text().startswith("![a picture")


def test_pages_of_other_languages_are_named(model: Captions) -> None:
    for name, language in (("de", "de-AT"), ("fr", "fr"), ("en", "en-GB"), ("none", "")):
        Path(f"site/{name}.html").write_text(f'<html lang="{language}"><img src="a%20b.png">')
    note = 'note: the texts are English, but site/de.html says lang="de-AT"'
    assert f"{note}, and 1 other file like it\n" in run("site").stderr
    assert f"{note}\n" in run("site/de.html", "site/en.html", "site/none.html").stderr
    assert "note: " not in run("site/en.html", "site/none.html").stderr


def test_missing_images_are_named_and_counted(model: Captions) -> None:
    Path("site/note.md").write_text("\n![](none.png)\n![](/a.png)\n![](note.md)\n![](a%20b.png)\n")
    done = run("site/note.md", "--write", code=1)
    assert "1 draft written, 3 skipped" in done.stderr
    assert "skipped: site/note.md:2: none.png: no such file" in done.stderr
    assert "note.md:3: /a.png: begins at the root of the site; give its folder by --root" in done.stderr
    assert "note.md:4: note.md: not an image in a known format" in done.stderr
    assert Path("site/note.md").read_text().startswith("\n![](none.png)\n![](/a.png)\n![](note.md)\n![a picture")
    Path("site/odd.html").write_bytes(b"\0")
    done = run("site", "--write", code=1)
    assert "skipped: site/odd.html: is not a text; give HTML and Markdown files" in done.stderr
    assert "with a text already" in done.stderr
    run("none.html", code=2)
    said = run("site/a b.png", code=2).stderr
    assert said == "error: site/a b.png: is not a text; give HTML and Markdown files, or folders of them\n"


@pytest.mark.parametrize(
    ("base", "url", "place"),
    [
        ('<base href="img/">', "a.png", "site/img/a.png"),
        ("<BASE target=x><base HREF='../img/index.html'>", "a.png?v=1", "site/../img/a.png"),
        ('<base href="/">', "a.png", "root/a.png"),
        ('<base href="img/">', "/a.png", "root/a.png"),
        ('<base href="https://example.org/">', "a.png", None),
        ('<base href="img/">', "//example.org/a.png", None),
        ('<!-- <base href="img/"> --></base>', "a.png", "site/a.png"),
        ('<base href="{{ url }}">', "a.png", "site/a.png"),
        ('<base href="img/"><base href="other/">', "a.png", "site/img/a.png"),
    ],
)
def test_urls_are_relative_to_the_base(base: str, url: str, place: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(f'<head>{base}</head><img src="{url}">')
    document = replace(Document.read(tmp_path / "a.html"), path=Path("site/a.html"))
    (image,) = document.images
    assert image.source == url
    assert document.locate(url, Path("root")) == (None if place is None else Path(place))


def test_addresses_of_files_are_read_in_the_root_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    document = Document(tmp_path / "site/a.html", "", "utf-8", ())
    inside, outside = tmp_path / "site/sub/a b.png", tmp_path / "a.png"
    assert document.locate(inside.as_uri(), tmp_path / "site") == inside
    assert replace(document, base=inside.as_uri()).locate("b.png", tmp_path / "site") == inside.parent / "b.png"
    climbing = f"{inside.as_uri()}/../../../a.png"
    for url, root in ((outside.as_uri(), tmp_path / "site"), (inside.as_uri(), None), (climbing, tmp_path / "site")):
        with pytest.raises(MissingImageError, match=re.escape(f"{url}: is not in the root folder of the site; give ")):
            document.locate(url, root)


def test_a_broken_address_stops_nothing(model: Captions) -> None:
    Path("site/a.html").write_text(
        '<base href="http://[x/"><img src="file:///x%00y.jpg"><img src="file://[abc/x.jpg"><img src="x%00y.png">'
        '<img src="//[x/a.png"><img src="a%20b.png">'
    )
    done = run("site", "--root", "site", "--write", code=1)
    assert "1 draft written, 1 on the network, left alone, 3 skipped" in done.stderr
    assert "site/a.html:1: file:///x%00y.jpg: is no address of a file (embedded null byte)" in done.stderr
    assert "site/a.html:1: file://[abc/x.jpg: is no address of a file (Invalid IPv6 URL)" in done.stderr
    assert "site/a.html:1: x%00y.png: no such file" in done.stderr
