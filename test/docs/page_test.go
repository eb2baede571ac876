package docs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A page is a Markdown file as the test sees it: its blocks of commands, in order,
// and where they run.
type page struct {
	name   string // its path in the repository
	world  string // "alone" is an empty directory and nothing else
	blocks []block
	files  map[string]string // those that the page has the reader make, by name
}

// A block is one command, or some, of a page.
type block struct {
	line     int    // of the page
	text     string // what a reader types
	notRun   string // why it does not run; "" is that it does
	code     int    // the exit code of its last command
	inBack   bool   // its last command goes on while the page does
	until    string // with inBack: the next block begins when this command succeeds
	compared bool   // with what the page shows
	shown    string
}

var (
	fenceLine = regexp.MustCompile("^( *)```(.*)$")
	markLine  = regexp.MustCompile(`^ *<!-- test: (.*) -->$`)
	// commandLine matches a line that is typed, for blocks of other languages.
	commandLine = regexp.MustCompile(`^\s*(\$ |meshctl [a-z]|kubectl [a-z]|istioctl [a-z]|make [a-z]|go (test|build|run|tool) |curl -|openssl [a-z]|export [A-Z])`)
)

// languages are the languages of blocks without commands.
var languages = []string{"text", "yaml", "json", "go", "python", "diff"}

// parse reads a page. Each fence names its language; sh and console are commands. An
// HTML comment on the line before says how a block runs:
//
//	<!-- test: not run: REASON -->
//	<!-- test: exit CODE -->
//	<!-- test: background until COMMAND -->
//
// and before a block of another language that it is a file: <!-- test: file NAME -->;
// and, anywhere, what the page stands on: <!-- test: world NAME -->.
func parse(name, text string) (*page, error) {
	p := &page{name: name, world: "alone", files: map[string]string{}}
	var failed []error
	fail := func(line int, format string, args ...any) {
		failed = append(failed, fmt.Errorf("%s:%d: %s", name, line, fmt.Sprintf(format, args...)))
	}
	lines := strings.Split(text, "\n")
	mark := ""
	for i := 0; i < len(lines); i++ {
		if m := markLine.FindStringSubmatch(lines[i]); m != nil {
			if world, ok := strings.CutPrefix(m[1], "world "); ok {
				p.world = world
				continue
			}
			if mark != "" {
				fail(i+1, "two marks for one block")
			}
			mark = m[1]
			continue
		}
		m := fenceLine.FindStringSubmatch(lines[i])
		if m == nil {
			if mark != "" {
				fail(i+1, "a mark stands on the line before its block")
				mark = ""
			}
			if strings.HasPrefix(lines[i], "    ") && commandLine.MatchString(lines[i]) {
				fail(i+1, "an indented command: put it into a fence with the language sh")
			}
			continue
		}
		indent, language, start := m[1], m[2], i+1
		var content []string
		for i++; i < len(lines) && strings.TrimRight(lines[i], " ") != indent+"```"; i++ {
			content = append(content, strings.TrimPrefix(lines[i], indent))
		}
		if i == len(lines) {
			fail(start, "the fence has no end")
			break
		}
		b := block{line: start + 1, text: strings.Join(content, "\n") + "\n"}
		switch {
		case language == "sh", language == "console":
			if err := b.mark(mark); err != nil {
				fail(start, "%v", err)
			}
			if language == "sh" {
				p.blocks = append(p.blocks, b)
			} else if typed, err := b.transcript(); err != nil {
				fail(start, "%v", err)
			} else {
				p.blocks = append(p.blocks, typed...)
			}
		case !slices.Contains(languages, language):
			fail(start, "the language of the block is %q, want sh, console or one of %v", language, languages)
		case strings.HasPrefix(mark, "file "):
			p.files[strings.TrimPrefix(mark, "file ")] = b.text
		case mark != "":
			fail(start, "a mark before a block that is no commands")
		case language == "text" && slices.ContainsFunc(content, commandLine.MatchString):
			fail(start, "a command in a block of text: its language is sh or console")
		}
		mark = ""
	}
	return p, errors.Join(failed...)
}

// mark applies a mark to the block.
func (b *block) mark(text string) (err error) {
	kind, rest, _ := strings.Cut(text, " ")
	switch {
	case text == "":
	case strings.HasPrefix(text, "not run: "):
		b.notRun = strings.TrimPrefix(text, "not run: ")
	case kind == "exit":
		b.code, err = strconv.Atoi(rest)
	case strings.HasPrefix(text, "background until "):
		b.inBack, b.until = true, strings.TrimPrefix(text, "background until ")
	default:
		err = fmt.Errorf("unknown mark %q", text)
	}
	return err
}

// transcript splits a block of the language console: "$ " begins a command, "> " continues
// it, and other lines are its output. The exit code is the last command's.
func (b block) transcript() (typed []block, err error) {
	for n, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			typed = append(typed, block{line: b.line + n, text: command + "\n", notRun: b.notRun})
			continue
		}
		if len(typed) == 0 {
			return nil, errors.New("a console begins with a line that begins with \"$ \"")
		}
		last := &typed[len(typed)-1]
		if more, ok := strings.CutPrefix(line, "> "); ok && !last.compared {
			last.text += more + "\n"
			continue
		}
		last.compared = true
		last.shown += line + "\n"
	}
	last := &typed[len(typed)-1]
	last.code, last.inBack, last.until = b.code, b.inBack, b.until
	return typed, nil
}

// differs returns the difference between the output and the page. On the page, a space stands
// for any number of spaces, … for any text, and a line with only … for any lines.
func differs(shown, seen string) string {
	var pattern strings.Builder
	for line := range strings.Lines(shown) {
		line = strings.TrimSpace(line)
		if line == "…" {
			pattern.WriteString(`(.*\n)*`)
			continue
		}
		for i, word := range strings.Fields(line) {
			if i > 0 {
				pattern.WriteString(` +`)
			}
			pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(word), "…", ".*"))
		}
		pattern.WriteString(` *\n`)
	}
	if regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(spaced(seen)) {
		return ""
	}
	return cmp.Diff(strings.Split(shown, "\n"), strings.Split(seen, "\n"))
}

// spaced is the text with one space for each run of them, and none around lines.
func spaced(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return out.String()
}

// pageNames returns the paths of all pages in the repository.
func pageNames(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			name, err := filepath.Rel(repository, path)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
	}
	return names
}

// pages reads all pages of the repository.
func pages(t *testing.T) (all []*page) {
	t.Helper()
	for _, name := range pageNames(t) {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		p, err := parse(name, string(text))
		if err != nil {
			t.Error(err)
			continue
		}
		all = append(all, p)
	}
	return all
}

func TestParse(t *testing.T) {
	t.Parallel()
	p, err := parse("a.md", strings.ReplaceAll(`# A
<!-- test: world mesh -->

'''sh
one
two
'''

1. In a list:

   <!-- test: exit 3 -->
   '''sh
   three
   '''

<!-- test: background until true -->
'''sh
four \
  more
'''

<!-- test: not run: it needs a cloud -->
'''sh
five
'''

'''console
$ six
seen  of six
$ seven <<END
> END
'''

<!-- test: file mesh.yaml -->
'''yaml
meshctl is: no command here
'''
`, "'''", "```"))
	if err != nil {
		t.Fatal(err)
	}
	want := &page{name: "a.md", world: "mesh", files: map[string]string{"mesh.yaml": "meshctl is: no command here\n"}, blocks: []block{
		{line: 5, text: "one\ntwo\n"},
		{line: 13, text: "three\n", code: 3},
		{line: 18, text: "four \\\n  more\n", inBack: true, until: "true"},
		{line: 24, text: "five\n", notRun: "it needs a cloud"},
		{line: 28, text: "six\n", compared: true, shown: "seen  of six\n"},
		{line: 30, text: "seven <<END\nEND\n"},
	}}
	if diff := cmp.Diff(want, p, cmp.AllowUnexported(page{}, block{})); diff != "" {
		t.Error(diff)
	}
}

// TestParseRefuses: what would be passed over is an error.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"'''\nmeshctl ps\n'''":                          `a.md:1: the language of the block is ""`,
		"'''bash\nmeshctl ps\n'''":                      `the language of the block is "bash"`,
		"'''text\nmeshctl ps\n'''":                      "a command in a block of text",
		"'''text\n$ ls\n'''":                            "a command in a block of text",
		"As in\n\n    meshctl ps\n":                     "a.md:3: an indented command",
		"'''sh\nmeshctl ps\n":                           "the fence has no end",
		"<!-- test: skipped -->\n'''sh\nls\n'''":        `unknown mark "skipped"`,
		"<!-- test: exit 3 -->\n\n'''sh\nls\n'''":       "a mark stands on the line before its block",
		"<!-- test: not run: x -->\n'''yaml\na: b\n'''": "a mark before a block that is no commands",
		"'''console\nls\n'''":                           "a console begins with a line that begins with",
	} {
		if _, err := parse("a.md", strings.ReplaceAll(text, "'''", "```")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestDiffers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		shown, seen string
		equal       bool
	}{
		{"a b\n", "a     b\n", true},
		{"a b\n", "a c\n", false},
		{"a … c\n", "a b b c\n", true},
		{"a\n…\nd\n", "a\nb\nc\nd\n", true},
		{"a\n…\nd\n", "a\nd\n", true},
		{"a\n", "a\nb\n", false},
		{"a.c\n", "abc\n", false},
	} {
		if got := differs(tc.shown, tc.seen); (got == "") != tc.equal {
			t.Errorf("differs(%q, %q) = %q", tc.shown, tc.seen, got)
		}
	}
}
