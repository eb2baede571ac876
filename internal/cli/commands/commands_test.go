package commands

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
)

// checkCommand parses the arguments of meshctl without running the command.
func checkCommand(words []string) error {
	cmd, rest, err := treeForWords().Find(words)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	args := cmd.Flags().Args()
	return errors.Join(cmd.ValidateArgs(args), cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups())
}

// checkMention checks a command in a sentence: arguments, and the value of its last flag,
// may be missing.
func checkMention(words []string) error {
	cmd, rest, err := treeForWords().Find(words)
	if err != nil {
		return err
	}
	err = cmd.ParseFlags(rest)
	if missing := (*pflag.ValueRequiredError)(nil); errors.As(err, &missing) || errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err == nil && len(cmd.Flags().Args()) > 0 {
		return checkCommand(words)
	}
	return err
}

func newRootCmd(env *cli.Env) *cobra.Command { return cli.NewRoot(env, groups()...) }

// treeForWords returns the commands with an empty environment.
func treeForWords() *cobra.Command {
	return newRootCmd(&cli.Env{LookupEnv: func(string) (string, bool) { return "", false }})
}

// shellWords splits a line into the words of its commands. It knows |, &&, redirections
// and quotes, but no expansions.
func shellWords(line string) (commands [][]string) {
	var words []string
	var word strings.Builder
	quote, inWord, redirected := rune(0), false, false
	end := func() {
		if inWord && !redirected {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t':
			end()
		case r == '>' || r == '<':
			if _, err := strconv.Atoi(word.String()); err == nil {
				word.Reset() // a file descriptor
				inWord = false
			}
			end()
			redirected = true
		case r == '&' && redirected && !inWord:
		case r == '|' || r == '&' || r == ';':
			end()
			if len(words) > 0 {
				commands = append(commands, words)
			}
			words, redirected = nil, false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	end()
	if len(words) > 0 {
		commands = append(commands, words)
	}
	return commands
}

// TestExamplesParse: the examples of every help use existing commands and flags.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	found := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		for line := range strings.Lines(strings.ReplaceAll(cmd.Example, "\\\n", " ")) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") {
				continue
			}
			for _, words := range shellWords(line) {
				if words[0] != "meshctl" {
					continue
				}
				found++
				if err := checkCommand(words[1:]); err != nil {
					t.Errorf("%s: %s: %v", cmd.CommandPath(), line, err)
				}
			}
		}
	}
	check(newRootCmd(&cli.Env{}))
	if found < 100 {
		t.Errorf("found %d examples", found)
	}
}

// TestPagesNameCommandsThatExist: code in sentences of pages uses existing commands and
// flags. test/docs runs blocks of commands.
func TestPagesNameCommandsThatExist(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile("`meshctl ([^`]+)`")
	found := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*.md", "deploy/*.yaml", "examples/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join("..", "..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			if filepath.Base(page) == "CHANGELOG.md" {
				continue // it names removed flags
			}
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
				command := strings.Join(strings.Fields(m[1]), " ")
				if strings.HasPrefix(command, "…") {
					continue
				}
				found++
				for _, words := range shellWords("meshctl " + command) {
					if words[0] != "meshctl" {
						continue
					}
					if err := checkMention(words[1:]); err != nil {
						t.Errorf("%s: meshctl %s: %v", page, command, err)
					}
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands", found)
	}
}

// TestReadmeLeadsToTasks: the README shows tasks before the table of commands, and the page
// for beginners before the reference; certificates that the pages make are not committed.
func TestReadmeLeadsToTasks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(text)
	for _, next := range []string{"## Start with a task", "docs/demo.md", "docs/get-started.md", "docs/multicluster.md", "meshctl pc ", "## Commands", "## Read on", "docs/get-started.md", "docs/multicluster.md"} {
		_, after, found := strings.Cut(rest, next)
		if !found {
			t.Fatalf("%s is missing, or comes earlier", next)
		}
		if rest = after; next == "## Start with a task" && strings.Count(string(text[:len(text)-len(rest)]), "\n") > 20 {
			t.Error("the tasks are not on the first screen")
		}
	}
	ignored, err := os.ReadFile("../../../.gitignore")
	if err != nil || !slices.Contains(strings.Fields(string(ignored)), "/certs/") {
		t.Errorf("git does not ignore certs/: %v", err)
	}
}

// subjects lists the words after which meshctl is the subject of a sentence.
var subjects = strings.Fields("can could created creates debug deletes did does is itself knows made or renews runs self-signed that uses was")

// TestHintsParse: every command in a string of the program exists. A command to type comes
// last, after a colon, and is complete; capitals stand for unknown values. Elsewhere, as in
// help texts, its name is enough.
func TestHintsParse(t *testing.T) {
	t.Parallel()
	typed := regexp.MustCompile(`: meshctl (.+)|^meshctl (.+ -.+)`)
	named := regexp.MustCompile(`\bmeshctl ((?:-{0,2}[a-z][a-z-]*\s+)*-{0,2}[a-z][a-z-]*)`)
	found, root := 0, treeForWords()
	for _, hint := range stringsOf(t, "../../../internal", "../../../cmd") {
		if m := typed.FindStringSubmatch(hint.text); m != nil && !hint.help && !slices.Contains(subjects, firstWord(m[1])) {
			found++
			if err := checkTyped(m[1] + m[2]); err != nil {
				t.Errorf("%s: %q: %v", hint.place, m[0], err)
			}
			continue
		}
		for _, m := range named.FindAllStringSubmatch(hint.text, -1) {
			words := strings.Fields(m[1])
			if slices.Contains(subjects, words[0]) {
				continue
			}
			found++
			if hasFlag := slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") }); hasFlag && !hint.help {
				t.Errorf("%s: %q: a command with flags must come last, after a colon", hint.place, m[0])
			}
			if err := checkName(root, words); err != nil {
				t.Errorf("%s: %q: %v", hint.place, m[0], err)
			}
		}
	}
	if found < 50 {
		t.Errorf("found %d commands", found)
	}
}

// TestHintsNameFlagsThatExist: every flag in a string of the program is a flag of a command.
func TestHintsNameFlagsThatExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"help": true, "version": true}
	for flag := range strings.FieldsSeq("overwrite local replicas verb resource role serviceaccount cert key from-file") { // of kubectl
		known[flag] = true
	}
	var learn func(*cobra.Command)
	learn = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			learn(sub)
		}
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		}
	}
	learn(treeForWords())
	named := regexp.MustCompile(`[\s(]--([a-zA-Z][a-zA-Z-]+)`) // not at the beginning, like arguments of Envoy
	for _, hint := range stringsOf(t, "../../../internal", "../../../cmd") {
		for _, m := range named.FindAllStringSubmatch(hint.text, -1) {
			if !known[m[1]] {
				t.Errorf("%s: no command has the flag --%s", hint.place, m[1])
			}
		}
	}
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// checkTyped checks a command with %s for values. In the name of the command %s may be any
// subcommand.
func checkTyped(line string) error {
	name, rest, filled := strings.Cut(line, "%s")
	if cmd, _, err := treeForWords().Find(strings.Fields(name)); filled && err == nil && cmd.HasSubCommands() {
		var failed error
		for _, sub := range cmd.Commands() {
			if failed = checkTyped(name + sub.Name() + rest); failed == nil {
				return nil
			}
		}
		return failed
	}
	if strings.Contains(line, ", ") {
		return errors.New("something follows the command")
	}
	words := shellWords("meshctl " + strings.ReplaceAll(line, "%s", "VALUE"))[0]
	return checkCommand(words[1:])
}

// checkName checks a command below cmd and its flags in the words of a sentence.
func checkName(cmd *cobra.Command, words []string) error {
	for len(words) > 0 && cmd.HasSubCommands() {
		sub, _, err := cmd.Find(words[:1])
		if err != nil || sub == cmd {
			break
		}
		cmd, words = sub, words[1:]
	}
	if !cmd.HasParent() {
		return fmt.Errorf("there is no command %q", words[0])
	}
	for _, word := range words {
		flag, ok := strings.CutPrefix(word, "--")
		if !ok {
			break // the sentence continues
		}
		if flag != "help" && cmd.Flags().Lookup(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil {
			return fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), flag)
		}
	}
	return nil
}

// literal is a string literal.
type literal struct {
	place, text string
	help        bool // of a command or a flag
}

// stringsOf returns the string literals of the Go files in directories, without tests.
// Literals joined by + are one.
func stringsOf(t *testing.T, dirs ...string) (out []literal) {
	t.Helper()
	files := token.NewFileSet()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			help := false // inside a help text
			var inspect func(ast.Node) bool
			inspect = func(n ast.Node) bool {
				if value := helpText(n); value != nil && !help {
					help = true
					ast.Inspect(value, inspect)
					help = false
					return false
				}
				expr, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				text, ok := joined(expr)
				if ok {
					out = append(out, literal{files.Position(n.Pos()).String(), text, help})
				}
				return !ok
			}
			ast.Inspect(file, inspect)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// helpText returns the value of a field or constant with help, or nil.
func helpText(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if name, ok := n.Key.(*ast.Ident); ok && slices.Contains([]string{"Long", "Short", "Example"}, name.Name) {
			return n.Value
		}
	case *ast.ValueSpec:
		if len(n.Values) == 1 && strings.HasSuffix(n.Names[0].Name, "Help") {
			return n.Values[0]
		}
	}
	return nil
}

// joined returns the text of literals joined by +, with %s for other operands.
func joined(expr ast.Expr) (string, bool) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		a, okA := joined(e.X)
		b, okB := joined(e.Y)
		if !okA && !okB {
			return "", false
		}
		if !okA {
			a = "%s"
		}
		if !okB {
			b = "%s"
		}
		return a + b, true
	}
	return "", false
}
