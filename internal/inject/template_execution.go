package inject

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/template/parse"

	"google.golang.org/protobuf/proto"
)

// The parser of Go templates is the standard library's. They are executed here, as package
// text/template does: that package calls methods by name, so the linker would keep all methods of all
// types, 26 MB. This execution knows only the methods that Istio's templates call: String, and the
// methods Get... of messages. It also bounds the work. FuzzCustomTemplate compares both.

// Bounds of all custom templates of a pod together. Text of the pod must not make templates run
// long or large.
const (
	maxTemplateOutput = 1 << 20 // bytes
	// maxTemplateWork bounds the sum of: bytes that functions return, values that they read, and
	// stepWork for each node.
	maxTemplateWork  = 4 << 20
	stepWork         = 20
	maxTemplateDepth = 100 // of templates that call templates
)

// templateBudget is what the templates of a pod may still do.
type templateBudget struct{ output, work int }

func newTemplateBudget() templateBudget { return templateBudget{maxTemplateOutput, maxTemplateWork} }

var (
	errTemplateWork   = errors.New("the templates work too long for this pod")
	errTemplateOutput = fmt.Errorf("the templates write more than %d bytes for this pod", maxTemplateOutput)
	errTemplateDepth  = fmt.Errorf("templates call each other more than %d deep", maxTemplateDepth)
)

// execution is one execution of a template.
type execution struct {
	*templateBudget
	ctx   context.Context
	trees map[string]*parse.Tree
	out   strings.Builder
	vars  []variable
	depth int
	at    parse.Node // for errors
}

type variable struct {
	name  string
	value reflect.Value
}

// fault is the panic that ends an execution.
type fault struct{ err error }

func fail(format string, args ...any) { panic(fault{fmt.Errorf(format, args...)}) }

// execute returns the result of a template.
func (p *injection) execute(ctx context.Context, trees map[string]*parse.Tree) (text string, err error) {
	data, err := p.templateData()
	if err != nil {
		return "", err
	}
	e := &execution{templateBudget: &p.templateBudget, ctx: ctx, trees: trees}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fault:
			place, what := trees[rootTemplate].ErrorContext(e.at)
			_, line, _ := strings.Cut(place, ":")
			line, _, _ = strings.Cut(line, ":")
			err = fmt.Errorf("line %s: at <%s>: %w", line, what, f.err)
		default:
			panic(f)
		}
	}()
	e.template(rootTemplate, reflect.ValueOf(data))
	return e.out.String(), nil
}

func (e *execution) spend(work int) {
	if e.work -= work; work < 0 || e.work < 0 {
		panic(fault{errTemplateWork})
	}
	if err := e.ctx.Err(); err != nil {
		panic(fault{err})
	}
}

func (e *execution) write(text string) {
	if e.output -= len(text); e.output < 0 {
		panic(fault{errTemplateOutput})
	}
	e.out.WriteString(text)
}

// template executes a named template.
func (e *execution) template(name string, dot reflect.Value) {
	tree := e.trees[name]
	if tree == nil {
		fail("template %q not defined", name)
	}
	if e.depth++; e.depth > maxTemplateDepth {
		panic(fault{errTemplateDepth})
	}
	vars := e.vars
	e.vars = []variable{{"$", dot}}
	e.walk(dot, tree.Root)
	e.vars = vars
	e.depth--
}

// flow is how a loop goes on after a node.
type flow int

const (
	next flow = iota
	breaks
	continues
)

func (e *execution) walk(dot reflect.Value, node parse.Node) flow {
	e.at = node
	e.spend(stepWork)
	switch n := node.(type) {
	case *parse.ListNode:
		for _, item := range n.Nodes {
			if f := e.walk(dot, item); f != next {
				return f
			}
		}
	case *parse.TextNode:
		e.write(string(n.Text))
	case *parse.ActionNode:
		value := e.pipeline(dot, n.Pipe)
		if e.at = node; len(n.Pipe.Decl) == 0 {
			e.print(value)
		}
	case *parse.IfNode:
		return e.branch(dot, &n.BranchNode, false)
	case *parse.WithNode:
		return e.branch(dot, &n.BranchNode, true)
	case *parse.RangeNode:
		return e.loop(dot, n)
	case *parse.TemplateNode:
		e.template(n.Name, e.pipeline(dot, n.Pipe))
	case *parse.BreakNode:
		return breaks
	case *parse.ContinueNode:
		return continues
	}
	return next
}

func (e *execution) branch(dot reflect.Value, n *parse.BranchNode, changesDot bool) (f flow) {
	kept := len(e.vars)
	value := e.pipeline(dot, n.Pipe)
	switch {
	case isTrue(bare(value)):
		if changesDot {
			dot = value
		}
		f = e.walk(dot, n.List)
	case n.ElseList != nil:
		f = e.walk(dot, n.ElseList)
	}
	e.vars = e.vars[:kept]
	return f
}

func (e *execution) loop(dot reflect.Value, n *parse.RangeNode) flow {
	kept := len(e.vars)
	decl, assigns := n.Pipe.Decl, n.Pipe.IsAssign
	value, _ := indirect(e.values(dot, n.Pipe))
	once := func(index, item reflect.Value) bool {
		e.vars = e.vars[:kept]
		if len(decl) == 1 {
			e.set(decl[0].Ident[0], item, assigns)
		} else if len(decl) == 2 {
			e.set(decl[0].Ident[0], index, assigns)
			e.set(decl[1].Ident[0], item, assigns)
		}
		return e.walk(item, n.List) != breaks
	}
	ran := false
	switch value.Kind() {
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			if ran = true; !once(reflect.ValueOf(i), value.Index(i)) {
				break
			}
		}
	case reflect.Map:
		keys := value.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return compareValues(a, b) })
		for _, key := range keys {
			if ran = true; !once(key, value.MapIndex(key)) {
				break
			}
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		for i := range value.Int() {
			item := reflect.ValueOf(i).Convert(value.Type())
			if ran = true; !once(item, item) {
				break
			}
		}
	case reflect.Invalid: // a missing value
	default:
		fail("range can't iterate over %v", value)
	}
	e.vars = e.vars[:kept]
	if !ran && n.ElseList != nil {
		return e.walk(dot, n.ElseList)
	}
	return next
}

// set sets a variable, or declares it.
func (e *execution) set(name string, value reflect.Value, assigns bool) {
	for i := len(e.vars) - 1; assigns && i >= 0; i-- {
		if e.vars[i].name == name {
			e.vars[i].value = value
			return
		}
	}
	e.vars = append(e.vars, variable{name, value})
}

// pipeline returns the value of a pipeline, and sets its variables.
func (e *execution) pipeline(dot reflect.Value, pipe *parse.PipeNode) reflect.Value {
	value := e.values(dot, pipe)
	if pipe != nil {
		for _, v := range pipe.Decl {
			e.set(v.Ident[0], value, pipe.IsAssign)
		}
	}
	return value
}

// values returns the value of a pipeline.
func (e *execution) values(dot reflect.Value, pipe *parse.PipeNode) (value reflect.Value) {
	if pipe == nil {
		return value
	}
	e.at = pipe
	for i, cmd := range pipe.Cmds {
		var last []reflect.Value
		if i > 0 {
			last = []reflect.Value{value}
		}
		value = bare(e.command(dot, cmd, last))
	}
	return value
}

// command returns the value of a command. last has the value of the command before it, if any.
func (e *execution) command(dot reflect.Value, cmd *parse.CommandNode, last []reflect.Value) reflect.Value {
	first := cmd.Args[0]
	if f, ok := first.(*parse.IdentifierNode); ok {
		return e.call(dot, f, cmd.Args[1:], last)
	}
	e.at = first
	if len(cmd.Args) > 1 || len(last) > 0 {
		fail("can't give argument to non-function %s", first)
	}
	if _, ok := first.(*parse.NilNode); ok {
		fail("nil is not a command")
	}
	return e.operand(dot, first, nil)
}

// operand returns the value of an argument for a parameter of a type, which may be nil.
func (e *execution) operand(dot reflect.Value, node parse.Node, as reflect.Type) reflect.Value {
	switch n := node.(type) {
	case *parse.DotNode:
		return dot
	case *parse.NilNode:
		return reflect.Value{}
	case *parse.BoolNode:
		return reflect.ValueOf(n.True)
	case *parse.StringNode:
		return reflect.ValueOf(n.Text)
	case *parse.NumberNode:
		return number(n, as)
	case *parse.FieldNode:
		return e.fields(dot, n.Ident, node)
	case *parse.VariableNode:
		for _, v := range slices.Backward(e.vars) {
			if v.name == n.Ident[0] {
				return e.fields(v.value, n.Ident[1:], node)
			}
		}
		fail("undefined variable: %s", n.Ident[0])
	case *parse.ChainNode:
		return e.fields(e.operand(dot, n.Node, nil), n.Field, node)
	case *parse.PipeNode:
		return e.pipeline(dot, n)
	case *parse.IdentifierNode:
		return e.call(dot, n, nil, nil)
	}
	fail("can't evaluate %s", node)
	return reflect.Value{}
}

// number returns a constant, in the type of its parameter if that is a number.
func number(n *parse.NumberNode, as reflect.Type) reflect.Value {
	isFloat := n.IsFloat && (!n.IsInt || strings.ContainsAny(n.Text, ".eEpP") && !strings.HasPrefix(strings.ToLower(n.Text), "0x"))
	switch {
	case as != nil && as.Kind() >= reflect.Int && as.Kind() <= reflect.Int64 && n.IsInt:
		return reflect.ValueOf(n.Int64).Convert(as)
	case as != nil && as.Kind() >= reflect.Uint && as.Kind() <= reflect.Uintptr && n.IsUint:
		return reflect.ValueOf(n.Uint64).Convert(as)
	case as != nil && (as.Kind() == reflect.Float32 || as.Kind() == reflect.Float64) && n.IsFloat:
		return reflect.ValueOf(n.Float64).Convert(as)
	case isFloat:
		return reflect.ValueOf(n.Float64)
	case n.IsInt:
		return reflect.ValueOf(int(n.Int64))
	}
	fail("%s is not a number of a supported type", n.Text)
	return reflect.Value{}
}

func (e *execution) fields(value reflect.Value, names []string, node parse.Node) reflect.Value {
	for _, name := range names {
		e.at = node
		value = fieldOf(value, name)
	}
	return value
}

// fieldOf returns a field of a struct, an item of a map, or what a known method returns.
func fieldOf(of reflect.Value, name string) reflect.Value {
	of = bare(of)
	if !of.IsValid() {
		return of
	}
	value, isNil := indirect(of)
	if getter, ok := strings.CutPrefix(name, "Get"); ok && of.Type().Implements(reflect.TypeFor[proto.Message]()) {
		if f, ok := of.Type().Elem().FieldByName(getter); ok {
			if isNil {
				return reflect.Zero(f.Type)
			}
			return value.FieldByIndex(f.Index)
		}
	}
	if isNil {
		fail("nil pointer evaluating %s.%s", of.Type(), name)
	}
	switch value.Kind() {
	case reflect.Struct:
		if f, ok := value.Type().FieldByName(name); ok && f.IsExported() {
			return value.FieldByIndex(f.Index)
		}
	case reflect.Map:
		if key := reflect.ValueOf(name); key.Type().AssignableTo(value.Type().Key()) {
			return value.MapIndex(key)
		}
	}
	if s, ok := reflect.TypeAssert[fmt.Stringer](of); ok && name == "String" {
		return reflect.ValueOf(s.String())
	}
	fail("can't evaluate field %s in type %s", name, of.Type())
	return value
}

// call calls a function with arguments, and the value of the command before it.
func (e *execution) call(dot reflect.Value, f *parse.IdentifierNode, args []parse.Node, last []reflect.Value) reflect.Value {
	e.at = f
	function := reflect.ValueOf(templateFunctions()[f.Ident])
	t := function.Type()
	count := len(args) + len(last)
	if required := t.NumIn(); t.IsVariadic() && count < required-1 || !t.IsVariadic() && count != required {
		fail("wrong number of args for %s: want %d got %d", f.Ident, required, count)
	}
	var in []reflect.Value
	for i := range count {
		as := t.In(min(i, t.NumIn()-1))
		if t.IsVariadic() && i >= t.NumIn()-1 {
			as = as.Elem()
		}
		var value reflect.Value
		if i < len(args) {
			value = e.operand(dot, args[i], as)
			e.at = args[i]
		} else {
			value = last[0]
		}
		in = append(in, assignable(value, as))
		if stops := f.Ident == "and" || f.Ident == "or"; stops && isTrue(bare(in[i])) == (f.Ident == "or") {
			return bare(in[i])
		}
	}
	if e.at = f; f.Ident == "and" || f.Ident == "or" {
		return bare(in[count-1])
	}
	return e.do(f.Ident, function, in)
}

// do calls a function, and pays for it before and after.
func (e *execution) do(name string, function reflect.Value, in []reflect.Value) reflect.Value {
	for _, v := range in {
		e.spend(sizeOf(v, 0, e.work, 0))
	}
	if estimate := resultSizes[name]; estimate != nil {
		e.spend(estimate(in))
	}
	out := func() []reflect.Value {
		defer func() {
			if f := recover(); f != nil {
				fail("error calling %s: %v", name, f)
			}
		}()
		return function.Call(in)
	}()
	if len(out) == 2 && !out[1].IsNil() {
		fail("error calling %s: %v", name, out[1])
	}
	e.spend(sizeOf(out[0], 1, e.work, 0))
	return bare(out[0])
}

// assignable returns a value as a type.
func assignable(value reflect.Value, as reflect.Type) reflect.Value {
	if !value.IsValid() {
		switch as.Kind() {
		case reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice, reflect.Func, reflect.Chan:
			return reflect.Zero(as)
		}
		fail("invalid value; expected %s", as)
	}
	if value.Type().AssignableTo(as) {
		return value
	}
	if value.Kind() == reflect.Interface && !value.IsNil() {
		if value = value.Elem(); value.Type().AssignableTo(as) {
			return value
		}
	}
	if value.Kind() == reflect.Pointer && value.Type().Elem().AssignableTo(as) && !value.IsNil() {
		return value.Elem()
	}
	if value.CanAddr() && value.Addr().Type().AssignableTo(as) {
		return value.Addr()
	}
	fail("wrong type for value; expected %s; got %s", as, value.Type())
	return value
}

// print writes a value.
func (e *execution) print(value reflect.Value) {
	if value.Kind() == reflect.Pointer {
		value, _ = indirect(value)
	}
	if !value.IsValid() {
		e.write("<no value>")
		return
	}
	if _, ok := reflect.TypeAssert[fmt.Stringer](value); !ok && value.CanAddr() {
		if s, ok := reflect.TypeAssert[fmt.Stringer](value.Addr()); ok {
			value = reflect.ValueOf(s)
		}
	}
	e.write(fmt.Sprint(value.Interface()))
}

// bare returns the value in an interface.
func bare(value reflect.Value) reflect.Value {
	if value.Kind() == reflect.Interface {
		return value.Elem()
	}
	return value
}

// indirect follows pointers and interfaces.
func indirect(value reflect.Value) (_ reflect.Value, isNil bool) {
	for value.Kind() == reflect.Pointer || value.Kind() == reflect.Interface {
		if value.IsNil() {
			return value, true
		}
		value = value.Elem()
	}
	return value, false
}

// isTrue reports whether a value is not the zero of its kind.
func isTrue(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Invalid:
		return false
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return value.Len() > 0
	case reflect.Struct:
		return true
	}
	return !value.IsZero()
}

// sizeOf returns the number of values in a value, and the bytes of texts times perByte. It returns
// more than most if there are more, or if the values nest too deep.
func sizeOf(v reflect.Value, perByte, most, depth int) int {
	size := 1
	add := func(part reflect.Value) bool {
		size += sizeOf(part, perByte, most-size, depth+1)
		return size <= most
	}
	if depth > 2*maxDepth { // an interface is a level, too
		return most + 1
	}
	switch v.Kind() {
	case reflect.String:
		size += perByte * v.Len()
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if !add(v.Index(i)) {
				break
			}
		}
	case reflect.Map:
		for name, value := range v.Seq2() {
			if !add(name) || !add(value) {
				break
			}
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			add(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !add(v.Field(i)) {
				break
			}
		}
	}
	return size
}
