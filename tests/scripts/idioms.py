"""How scripts keep state from step to step: what comes before the loop, and what one step does to get its `factor`.

In each, something that no prepared object holds changes from step to step and decides what is computed.
"""

from __future__ import annotations

import textwrap

START = """
import array, bisect, collections, contextvars, ctypes, dataclasses, decimal, enum, functools, heapq, io, itertools, logging, os
import json, queue, random, sqlite3, sys, tempfile, threading, types, typing, weakref
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
import samebits

run = samebits.init(seed=0, lanes=2, threads=1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 4))
{early}
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8))
{before}
for epoch in run.epochs(2):
    for step in run.steps(loader):
        {turn}
        for batch in step:
            run.backward(factor * model(batch[0]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""

NAMED = {
    "a torch.Generator": ("g = torch.Generator().manual_seed(1)", "factor = float(torch.rand((), generator=g))"),
    "a NumPy Generator": ("g = np.random.default_rng(1)", "factor = float(g.random())"),
    "a NumPy RandomState": ("g = np.random.RandomState(1)", "factor = g.rand()"),
    "a random.Random": ("g = random.Random(1)", "factor = g.random()"),
    "a bound method of a generator": ("draw = random.Random(1).random", "factor = draw()"),
    "a subclass of a generator": ("class R(random.Random): pass\nr = R(3)", "factor = r.random()"),
    "a deque in a class with slots": (
        "class Window:\n    __slots__ = ('q',)\n    def __init__(self): self.q = collections.deque([1.0] * 3)\n"
        "    def push(self, v):\n        self.q.append(v)\n        return self.q.popleft()\nw = Window()",
        "factor = w.push(step.number * 0.1)",
    ),
    "lru_cache over a function that pops": (
        "left = [0.1 * n for n in range(20)]\n@functools.lru_cache(None)\ndef take(n): return left.pop()",
        "factor = take(step.index)",
    ),
    "a closure with nonlocal": (
        "def make():\n    n = 0\n    def count():\n        nonlocal n\n        n += 1\n        return n * 0.1\n"
        "    return count\ncount = make()",
        "factor = count()",
    ),
    "an attribute of a class": ("class Cfg:\n    scale = 1.0", "Cfg.scale *= 0.9\n        factor = Cfg.scale"),
    "an attribute of a function": ("def f(): return f.n\nf.n = 1.0", "f.n *= 0.9\n        factor = f()"),
    "an attribute of sys": ("sys.scale = 1.0", "sys.scale *= 0.9\n        factor = sys.scale"),
    "an attribute of torch": ("torch.scale = 1.0", "torch.scale *= 0.9\n        factor = torch.scale"),
    "os.environ": ("os.environ['X'] = '1'", "os.environ['X'] += '1'\n        factor = len(os.environ['X']) * 0.1"),
    "an object seven attributes deep": (
        "n = types.SimpleNamespace\na = n(b=n(c=n(d=n(e=n(f=n(g=1.0))))))",
        "a.b.c.d.e.f.g *= 0.9\n        factor = a.b.c.d.e.f.g",
    ),
    "a scheduler of an unprepared optimizer": (
        "own = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)\n"
        "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(own, patience=0)",
        "plateau.step(1.0)\n        factor = own.param_groups[0]['lr']",
    ),
    "threading.local": ("t = threading.local()\nt.n = 1.0", "t.n *= 0.9\n        factor = t.n"),
    "a ctypes array": ("c = (ctypes.c_double * 1)(1.0)", "c[0] *= 0.9\n        factor = c[0]"),
    "an array": ("c = array.array('d', [1.0])", "c[0] *= 0.9\n        factor = c[0]"),
    "a bytearray": ("c = bytearray(b'a')", "c.append(1)\n        factor = len(c) * 0.1"),
    "a queue": ("q = queue.Queue()\nq.put(1.0)", "factor = q.get() * 0.9\n        q.put(factor)"),
    "itertools.count": ("c = itertools.count()", "factor = next(c) * 0.1"),
    "itertools.cycle": ("c = itertools.cycle([1, 2, 3])", "factor = next(c)"),
    "a map": ("c = map(float, range(99))", "factor = next(c)"),
    "a generator function": (
        "def g():\n    n = 1.0\n    while True:\n        n *= 0.9\n        yield n\nc = g()",
        "factor = next(c)",
    ),
    "partial over a list": ("take = functools.partial(list.pop, [0.1] * 20 + [0.2] * 3)", "factor = take()"),
    "an attribute of an enum member": (
        "class Mode(enum.Enum):\n    A = 1\nMode.A.n = 1.0",
        "Mode.A.n *= 0.9\n        factor = Mode.A.n",
    ),
    "a dataclass": (
        "@dataclasses.dataclass\nclass S:\n    n: float = 1.0\ns = S()",
        "s.n *= 0.9\n        factor = s.n",
    ),
    "a SimpleNamespace": ("s = types.SimpleNamespace(n=1.0)", "s.n *= 0.9\n        factor = s.n"),
    "a namedtuple with a list": (
        "s = collections.namedtuple('S', 'seen')([])",
        "s.seen.append(1)\n        factor = len(s.seen) * 0.1",
    ),
    "a property that counts": (
        "class P:\n    n = 0\n    @property\n    def value(self):\n        self.n += 1\n        return self.n * 0.1\np = P()",
        "factor = p.value",
    ),
    "a WeakKeyDictionary": (
        "w = weakref.WeakKeyDictionary({model: 1.0})",
        "w[model] *= 0.9\n        factor = w[model]",
    ),
    "heapq on a list": ("h = [0.1 * n for n in range(20)]", "factor = heapq.heappop(h)"),
    "a NumPy array": ("a = np.ones(1)", "a *= 0.9\n        factor = float(a[0])"),
    "a NumPy array's element": ("a = np.ones(1)", "a[0] *= 0.9\n        factor = float(a[0])"),
    "a memmap": (
        "a = np.memmap(tempfile.NamedTemporaryFile().name, 'float64', 'w+', shape=(1,))",
        "a[0] += 1\n        factor = float(a[0])",
    ),
    "a tensor": ("t = torch.ones(1)", "t.mul_(0.9)\n        factor = t"),
    "a tensor's data": ("t = torch.ones(1)", "t.data[0] *= 0.9\n        factor = t"),
    "a tensor's NumPy view": ("t = torch.ones(1)\nv = t.numpy()", "v *= 0.9\n        factor = t"),
    "a view made in the turn": ("t = torch.ones(1)", "v = t.numpy()\n        v *= 0.9\n        factor = t"),
    "another model's weights": (
        "other = nn.Linear(1, 1)",
        "with torch.no_grad():\n            for p in other.parameters(): p.mul_(0.9)\n        factor = float(other.weight)",
    ),
    "a meter": (
        "class Meter:\n    def __init__(self): self.total = 0.0\n    def add(self, v): self.total += v\nm = Meter()",
        "m.add(step.number)\n        factor = m.total * 0.01",
    ),
    "a logger's attribute": (
        "log = logging.getLogger('x')\nlog.n = 1.0",
        "log.n *= 0.9\n        factor = log.n",
    ),
    "a metaclass's counter": (
        "class M(type):\n    n = 0\n    def __call__(cls, *a):\n        M.n += 1\n        return super().__call__(*a)\n"
        "class C(metaclass=M): pass",
        "C()\n        factor = M.n * 0.1",
    ),
    "a default argument": ("def f(seen=[]):\n    seen.append(1)\n    return len(seen) * 0.1", "factor = f()"),
    "globals()": ("scale = 1.0", "globals()['scale'] *= 0.9\n        factor = scale"),
    "exec": ("scale = 1.0", "exec('scale *= 0.9')\n        factor = scale"),
    "setattr": (
        "s = types.SimpleNamespace(n=1.0)",
        "setattr(s, 'n', s.n * 0.9)\n        factor = s.n",
    ),
    "setattr by a name": (
        "s = types.SimpleNamespace(n=1.0)",
        "for k in list(vars(s)): setattr(s, k, getattr(s, k) * 0.9)\n        factor = s.n",
    ),
    "an iterator over a range": ("r = iter(range(99))", "factor = next(r) * 0.1"),
    "io.StringIO": ("b = io.StringIO('1 2 3 4 5 6 7 8 9')", "factor = float(b.read(1) or 0)\n        b.read(1)"),
    "SobolEngine": ("s = torch.quasirandom.SobolEngine(1)", "factor = float(s.draw(1))"),
    "iter(DataLoader) beside the loop": (
        "other = iter(DataLoader(torch.rand(64), batch_size=2))",
        "factor = float(next(other).mean())",
    ),
    "an object with __getattr__": (
        "class G:\n    def __init__(self): self.__dict__['n'] = 1.0\n    def __getattr__(self, name):\n"
        "        self.__dict__['n'] *= 0.9\n        return self.__dict__['n']\ng = G()",
        "factor = g.anything",
    ),
    "a variable of the loop": ("scale = 1.0", "factor = scale\n        scale = 0.9 * scale"),
    "a variable on one way": ("scale = 1.0", "if step.number == 3: scale = 0.5\n        factor = scale"),
    "the best so far": (
        "best = 9.0\ndef loss(): return step.number",
        "if loss() < best: best = loss()\n        factor = best",
    ),
    "sqlite3": (
        "db = sqlite3.connect(':memory:')\ndb.execute('create table t (n)')",
        "db.execute('insert into t values (1)')\n"
        "        factor = db.execute('select count(*) from t').fetchone()[0] * 0.1",
    ),
    "contextvars": ("v = contextvars.ContextVar('v', default=1.0)", "v.set(v.get() * 0.9)\n        factor = v.get()"),
    "decimal's context": (
        "decimal.getcontext().prec = 5",
        "decimal.getcontext().prec += 1\n        factor = float(decimal.Decimal(1) / 3)",
    ),
    "decimal's context, kept": (
        "ctx = decimal.getcontext()",
        "ctx.prec += 1\n        factor = float(decimal.Decimal(1) / 3)",
    ),
    "a class that holds an iterator": (
        "class Source:\n    def __init__(self): self.it = iter(range(99))\n    def next(self): return next(self.it)\n"
        "s = Source()",
        "factor = s.next() * 0.1",
    ),
    "an iterator of the user's class": (
        "class It:\n    def __init__(self): self.n = 0\n    def __next__(self):\n        self.n += 1\n"
        "        return self.n\nit = It()",
        "factor = next(it) * 0.1",
    ),
    "a callable object": (
        "class Call:\n    n = 0\n    def __call__(self):\n        self.n += 1\n        return self.n\ncall = Call()",
        "factor = call() * 0.1",
    ),
    "an operator of the user's class": (
        "class Op:\n    n = 0\n    def __mul__(self, other):\n        self.n += 1\n        return self.n\nop = Op()",
        "factor = (op * 2) * 0.1",
    ),
    "an open file": (
        "name = tempfile.mkstemp()[1]\nopen(name, 'w').write('1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n')\nf = open(name)",
        "factor = float(f.readline() or 1)",
    ),
    "a zip of loaders": (
        "pairs = zip(DataLoader(torch.rand(64)), DataLoader(torch.rand(64)))",
        "factor = float(next(pairs)[0])",
    ),
    "an unprepared optimizer": (
        "p = torch.ones(1, requires_grad=True)\nown = torch.optim.Adam([p])",
        "p.grad = torch.ones(1)\n        own.step()\n        factor = float(p)",
    ),
    "a global": ("n = 0\ndef count():\n    global n\n    n += 1\n    return n", "factor = count() * 0.1"),
    "a list that grows": ("seen = []", "seen.append(step.number)\n        factor = sum(seen) * 0.01"),
    "a list's alias": ("seen = []", "same = seen\n        same.append(1)\n        factor = len(seen) * 0.1"),
    "a list given to a function": (
        "seen = []\ndef note(where):\n    where.append(1)\n    return len(where)",
        "factor = note(seen) * 0.1",
    ),
    "a list that a library changes": ("seen = [3, 2, 1]", "random.shuffle(seen)\n        factor = seen[0]"),
    "a dict of floats": ("d = {'s': 1.0}", "d['s'] *= 0.9\n        factor = d['s']"),
    "a list in a dict": ("d = {'s': []}", "d['s'].append(1)\n        factor = len(d['s']) * 0.1"),
    "an attribute of the prepared model": (
        "model.temperature = 1.0",
        "model.temperature *= 0.9\n        factor = model.temperature",
    ),
    "a module's plain attribute, on one way": (
        "drop = nn.Dropout(0.5)",
        "if step.number == 3: drop.p = 0.1\n        factor = drop(torch.ones(1))",
    ),
    "callbacks in a list": (
        "class Cb:\n    n = 0\n    def on_step(self):\n        self.n += 1\n        return self.n\ncbs = [Cb()]",
        "factor = 0.1\n        for cb in cbs: factor *= cb.on_step()",
    ),
    "functions in a dict": (
        "n = [0]\ndef f():\n    n[0] += 1\n    return n[0]\nfs = {'f': f}",
        "factor = fs['f']() * 0.1",
    ),
    "a lambda over a list": ("n = [9, 8, 7, 6, 5, 4, 3, 2, 1]\nf = lambda: n.pop()", "factor = f() * 0.1"),
    "an optimizer made anew": (
        "",
        "if step.number == 3: optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n        factor = 1.0",
    ),
    "a walrus": ("s = 1.0", "factor = (s := s * 0.9)"),
    "a comprehension's element": ("ms = [[], []]", "[m.append(1) for m in ms]\n        factor = len(ms[0]) * 0.1"),
    "a method kept in a variable": ("seen = []\nnote = seen.append", "note(1)\n        factor = len(seen) * 0.1"),
    "a descriptor": (
        "class D:\n    def __get__(self, o, t):\n        self.n = getattr(self, 'n', 0) + 1\n        return self.n\n"
        "class H:\n    d = D()\nh = H()",
        "factor = h.d * 0.1",
    ),
    "an instance's own function": (
        "class O: pass\no = O()\nseen = []\no.f = lambda: seen.append(1) or len(seen)",
        "factor = o.f() * 0.1",
    ),
    "a static method": (
        "class K:\n    seen = []\n    @staticmethod\n    def f():\n        K.seen.append(1)\n        return len(K.seen)",
        "factor = K.f() * 0.1",
    ),
    "a class method": (
        "class K:\n    n = 0\n    @classmethod\n    def f(cls):\n        cls.n += 1\n        return cls.n",
        "factor = K.f() * 0.1",
    ),
    "a context manager": (
        "class Ctx:\n    n = 0\n    def __enter__(self):\n        self.n += 1\n        return self.n\n"
        "    def __exit__(self, *e): pass\nctx = Ctx()",
        "with ctx as n: factor = n * 0.1",
    ),
    "a while loop's variable": ("n = 0", "while n < step.number: n += 1\n        factor = n * 0.1"),
    "a buffer that is not saved": (
        "",
        "model.seen.add_(1)\n        factor = float(model.seen)",
        "model.register_buffer('seen', torch.zeros(1), persistent=False)",
    ),
    "an optimizer's hook": (
        "",
        "factor = 0.1 * n[0]",
        "n = [0]\ndef hook(*a):\n    n[0] += 1\noptimizer.register_step_post_hook(hook)",
    ),
    "a forward hook": (
        "",
        "factor = 1.0",
        "class Cfg:\n    n = 1.0\ndef hook(module, args, out):\n    Cfg.n *= 0.9\n    return out * Cfg.n\n"
        "model.register_forward_hook(hook)",
    ),
    "an attribute of a parameter": (
        "for p in model.parameters(): p.momentum_buf = torch.zeros_like(p)",
        "for p in model.parameters(): p.momentum_buf.mul_(0.9).add_(1)\n        factor = float(model.bias.momentum_buf)",
    ),
    "a gradient of a tensor that nobody prepared": (
        "w = torch.ones(1, requires_grad=True)",
        "w.square().sum().backward()\n        factor = float(w.grad)",
    ),
    "an average of the script's own": (
        "class Ema:\n    def __init__(self): self.shadow = {}\n    @torch.no_grad()\n    def update(self, m):\n        for k, p in m.named_parameters():\n"
        "            self.shadow[k] = 0.9 * self.shadow.get(k, p) + 0.1 * p\nema = Ema()",
        "factor = 1.0\n        ema.update(model)",
    ),
    "an average that is a module of the script's own": (
        "import copy\nclass Ema(nn.Module):\n    def __init__(self, m): super().__init__(); self.module = copy.deepcopy(m)\n    @torch.no_grad()\n"
        "    def update(self, m):\n        for a, p in zip(self.parameters(), m.parameters()): a.lerp_(p.detach() + 1, 0.1)\nema = Ema(model)",
        "factor = 1.0\n        ema.update(model)",
    ),
    "an object that only a hook holds": (
        "",
        "factor = 1.0",
        "class H:\n    n = 1.0\n    def go(self, module, args, out):\n        self.n *= 0.9\n        return out * self.n\n"
        "model.register_forward_hook(functools.partial(H().go))",
    ),
    "a variable that only an optimizer's hook sees": (
        "",
        "factor = 1.0",
        "def make():\n    n = [1.0]\n    def hook(optimizer, *a):\n        n[0] *= 0.9\n        optimizer.param_groups[0]['lr'] = n[0]\n"
        "    return hook\noptimizer.register_step_post_hook(make())",
    ),
    "forward stores to self": (
        "",
        "factor = 1.0",
        "class Net(nn.Linear):\n    n = 1.0\n    def forward(self, x):\n        self.n = self.n * 0.9\n"
        "        return super().forward(x) * self.n\nmodel = Net(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    ),
    "an attribute of the data set": (
        "",
        "factor = 1.0",
        "class Data(Dataset):\n    n = 0\n    def __len__(self): return 32\n    def __getitem__(self, i):\n"
        "        self.n += 1\n        return (torch.ones(4) * self.n,)\ndata = Data()",
    ),
    "a list in a collection of the data set": (
        "",
        "factor = 1.0",
        "class Data(Dataset):\n    def __init__(self): self.seen = []\n    def __len__(self): return 32\n"
        "    def __getitem__(self, i):\n        self.seen.append(i)\n        return (torch.ones(4) * len(self.seen),)\n"
        "data = Data()",
    ),
    "a sum that decides when to save": (
        "total = 0.0",
        "factor = 1.0\n        total += step.number\n        if total > 9: torch.save(model.state_dict(), os.devnull)",
    ),
    "a count that ends a turn early": (
        "n = 0",
        "factor = 1.0\n        n += 1\n        if n > 3: continue",
    ),
    "a list that is put into one made in the turn": (
        "old = torch.ones(1)",
        "both = []\n        both.append(old)\n        old = both[0] * 0.9\n        factor = torch.stack(both).sum()",
    ),
    "a value that another one is made from": (
        "a, b = 1.0, 1.0",
        "factor = b\n        b = a\n        a = a * 0.9",
    ),
    "what an early return depends on": (
        "class Warm:\n    n = 0\n    def go(self):\n        self.n += 1\n        if self.n < 4: return 0.0\n"
        "        return 1.0\nw = Warm()",
        "factor = w.go()",
    ),
    "losses that are written to a file": (
        "losses = []",
        "factor = 1.0\n        losses.append(step.number)\n        torch.save(losses, os.devnull)",
    ),
    "a default of a function registered for dispatch": (
        "@functools.singledispatch\ndef weigh(v): return 1\n@weigh.register\n"
        "def _(v: int, kept=[]): kept.append(v); return 1 + 0.1 * len(kept)",
        "factor = weigh(step.number)",
    ),
    "a method registered for dispatch": (
        "class W:\n    n = 0\n    @functools.singledispatchmethod\n    def weigh(self, v): return 1\n"
        "    @weigh.register\n    def _(self, v: int): self.n += 1; return 1 + 0.1 * self.n\nw = W()",
        "factor = w.weigh(step.number)",
    ),
    "a class that counts where it is indexed": (
        "class C:\n    n = 0\n    def __class_getitem__(cls, i): cls.n += 1; return 1 + cls.n / 9",
        "factor = C[0]",
    ),
    "a metaclass": (
        "class M(type):\n    n = 0\n    def __len__(cls): cls.n += 1; return cls.n\nclass C(metaclass=M): pass",
        "factor = 1 / (1 + len(C))",
    ),
    "a module's forward that calls the one of its parent": (
        "class A(torch.nn.Module):\n    n = 0\n    def forward(self, v): self.n += 1; return v * self.n\n"
        "class B(A):\n    def forward(self, v): return super().forward(v)\nb = B()",
        "factor = 1 / b(1.0)",
    ),
    "an autograd.Function": (
        "class Fn(torch.autograd.Function):\n    n = 0\n    @staticmethod\n"
        "    def forward(ctx, v): Fn.n += 1; return v * (1 + Fn.n / 9)\n    @staticmethod\n"
        "    def backward(ctx, g): return g",
        "factor = Fn.apply(torch.ones(()))",
    ),
    "a library's method that calls one of the script's": (
        "class D(collections.UserDict):\n    def __init__(self): super().__init__(); self.n = 0\n"
        "    def __getitem__(self, k): self.n += 1; return self.n\n    def __contains__(self, k): return True\n"
        "d = D()",
        "factor = d.get(1)",
    ),
    "an encoder's default": (
        "class E(json.JSONEncoder):\n    n = 0\n    def default(self, o): E.n += 1; return E.n\ne = E()",
        "factor = float(e.encode(object()))",
    ),
    "a method of what the turn makes": (
        "class C(typing.NamedTuple):\n    a: int\n    def go(self): k.append(1); return len(k)\nk = []",
        "factor = 1 / C(1).go()",
    ),
    "an enum's _missing_": (
        "class C(enum.Enum):\n    A = 1\n    @classmethod\n    def _missing_(cls, v): k.append(1); return cls.A\n"
        "k = []",
        "C(7); factor = 1 / len(k)",
    ),
    "a factory of a defaultdict": (
        "k = []\ndef make(): k.append(1); return len(k)\nd = collections.defaultdict(make)",
        "factor = 1 / d[step.number]",
    ),
    "a function in a library's wrapper": (
        "k = []\ndef a(v): k.append(1); return v * len(k)\nf = np.vectorize(a)",
        "factor = float(f(1.0))",
    ),
    "__str__": (
        "class S:\n    n = 0\n    def __str__(self): self.n += 1; return str(self.n)\ns = S()",
        "factor = 1 / float(str(s))",
    ),
    "a class made in the turn, counted by its base": (
        "k = []\nclass B:\n    def __init_subclass__(cls): k.append(1)",
        "class C(B): pass\n        factor = 1 / len(k)",
    ),
    "a class made in the turn, counted by what is in it": (
        "k = []\nclass D:\n    def __set_name__(self, o, n): k.append(1)",
        "class C:\n            d = D()\n        factor = 1 / len(k)",
    ),
    "a decorator of a function made in the turn": (
        "k = []\ndef deco(f): k.append(1); return f",
        "@deco\n        def f(): return 1\n        factor = 1 / len(k)",
    ),
    "a decorator of a class made in the turn": (
        "k = []\ndef deco(f): k.append(1); return f",
        "@deco\n        class f: pass\n        factor = 1 / len(k)",
    ),
    "a default of a function made in the turn": (
        "k = []\ndef grow(): k.append(1); return 2",
        "def f(a=grow()): return 1\n        factor = 1 / len(k)",
    ),
    "a default of a lambda": (
        "k = []\ndef grow(): k.append(1); return 2",
        "f = lambda a=grow(): 1\n        factor = 1 / len(k)",
    ),
    "a module's __getattr__": (
        "k = []\nm = types.ModuleType('m')\ndef g(n): k.append(1); return len(k)\nm.__getattr__ = g",
        "factor = 1 / m.x",
    ),
    "a weight that a module of the script computes": (
        "k = []\nclass P(nn.Module):\n    def forward(self, v): k.append(1); return v * len(k)\nl = nn.Linear(1, 1)\ntorch.nn.utils.parametrize.register_parametrization(l, 'weight', P())",
        "factor = l.weight.abs().sum().item() / 9",
    ),
    "a hook at a tensor of the script": (
        "k = []\nw = torch.ones(1, requires_grad=True)\nw.register_hook(lambda g: k.append(1))",
        "w.sum().backward(); factor = 1 / len(k)",
    ),
    "a list's method that a library calls": (
        "k = []\nimport contextlib",
        "with contextlib.ExitStack() as s:\n            s.callback(k.append, 1)\n        factor = 1 / len(k)",
    ),
    "a class that a library calls": (
        "class K:\n    n = 0\n    def __init__(self, v): K.n += 1",
        "list(map(K, [1]))\n        factor = 1 / K.n",
    ),
    "run of a thread": (
        "class T(threading.Thread):\n    n = 0\n    def run(self): T.n += 1",
        "t = T(); t.start(); t.join()\n        factor = 1 / T.n",
    ),
    "a visitor": (
        "import ast\nk = []\nclass V(ast.NodeVisitor):\n    def visit_Name(self, node): k.append(1)\nv = V()",
        "v.visit(ast.parse('a'))\n        factor = 1 / len(k)",
    ),
    "a visitor made in the turn": (
        "import ast\nk = []\nclass V(ast.NodeVisitor):\n    def visit_Name(self, node): k.append(1)",
        "V().visit(ast.parse('a'))\n        factor = 1 / len(k)",
    ),
    "a metaclass of a class made in the turn": (
        "k = []\nclass M(type):\n    def __new__(m, *a): k.append(1); return type.__new__(m, *a)",
        "class C(metaclass=M): pass\n        factor = 1 / len(k)",
    ),
}
"""By name: what comes before the loop, what a step does, what comes before `run.prepare`."""

SAVED = {
    "a flag of what is prepared in the middle": (
        "grown = False",
        "factor = 1.0\n        if step.number > 4 and not grown:\n            grown = True; optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.2))",
    ),
    "a flag in an object of what is prepared in the middle": (
        "class G:\n    is_grown = False\n    def grow(self):\n        self.is_grown = True\n        return run.prepare(torch.optim.SGD(model.parameters(), lr=0.2))\ng = G()",
        "factor = 1.0\n        if step.number > 4 and not g.is_grown: optimizer = g.grow()",
    ),
    "a flag of a head that is prepared in the middle": (
        "n = 0",
        "factor = 1.0\n        if step.number > 4 and not n:\n            n = 1; head = run.prepare(nn.Linear(4, 4)); model.head = head",
    ),
    "a class that is only asked for": (
        "class K:\n    n = 0\n    def __init__(self, v): self.v = v\nk = K(2)",
        "factor = 1.0 if isinstance(k, K) else 2.0",
    ),
    "a method that changes nothing, given to a library": (
        "sizes = {1: 3, 2: 1}",
        "factor = sorted(sizes, key=sizes.get)[0] / 2",
    ),
    "a thread made anew": (
        "import queue\nclass T(threading.Thread):\n    def run(self): self.x = 1",
        "t = T(); t.start(); t.join(); factor = t.x",
    ),
    "a module made anew": (
        "class N(nn.Module):\n    def __init__(self): super().__init__(); self.calls = 0\n    def forward(self, x): self.calls += 1; return x",
        "net = N()\n        factor = float(net(torch.ones(())))",
    ),
    "a decorator of a library": (
        "",
        "@torch.no_grad()\n        def loss(v): return v\n        factor = loss(1.0)",
    ),
    "a rate in a group": (
        "optimizer.param_groups[0]['lr'] = torch.tensor(0.1)\nrate = optimizer.param_groups[0]['lr']",
        "factor = 1.0\n        rate.mul_(0.9)",
    ),
    "a list in run.state": (
        "run.state.seen = []; run.state.best = 9.0",
        "run.state.seen.append(run.state.best); factor = len(run.state.seen)",
    ),
    "a dict of lists in run.state": (
        "run.state.of = {'a': []}",
        "run.state.of['a'].append(1); factor = len(run.state.of['a'])",
    ),
    "a module inside a tracked one": (
        "ema = torch.optim.swa_utils.AveragedModel(model); run.track(ema=ema)",
        "factor = next(ema.module.parameters()).detach().mul_(0.9).mean().item()",
    ),
    "Python's global generator": ("", "factor = random.random()"),
    "NumPy's global generator": ("", "factor = np.random.rand()"),
    "torch's global generator": ("", "factor = float(torch.rand(()))"),
    "run.state": ("run.state.scale = 1.0", "run.state.scale *= 0.9\n        factor = run.state.scale"),
    "a tracked object": (
        "class T:\n    n = 1.0\n    def state_dict(self): return {'n': self.n}\n"
        "    def load_state_dict(self, s): self.n = s['n']\n    def next(self):\n        self.n *= 0.9\n"
        "        return self.n\nt = T()\nrun.track(t=t)",
        "factor = t.next()",
    ),
    "the learning rate": ("", "for g in optimizer.param_groups: g['lr'] *= 0.9\n        factor = 1.0"),
    "a constant": ("scale = 0.5", "factor = scale"),
    "a list that is only read": ("scales = [0.1, 0.2, 0.3]", "factor = scales[step.index % len(scales)]"),
    "a dict that is only read": ("cfg = {'scale': 0.5}", "factor = cfg['scale'] + cfg.get('more', 0)"),
    "a tensor that is only read": ("w = torch.ones(3)", "factor = (w * 2).sum() + w[step.index % 3]"),
    "a function of the step": ("def f(n): return 0.9 ** n", "factor = f(step.number)"),
    "a value made anew": ("", "total = 0.0\n        for k in range(3): total += k\n        factor = total"),
    "a list made anew": ("", "seen = []\n        seen.append(1)\n        factor = len(seen)"),
    "a bool that is only read": ("quick = False", "factor = 0.5 if quick else 0.1"),
    "a clock": (
        "import time\nbegan = time.time()\nend = time.time()",
        "waited = time.time() - end\n        factor = 1.0\n        end = time.time()",
    ),
    "a frozen teacher": (
        "teacher = nn.Sequential(nn.Linear(1, 1), nn.ReLU()).eval()",
        "with torch.no_grad(): factor = teacher(torch.ones(1))",
    ),
    "a loss module": ("loss = nn.MSELoss()", "factor = float(loss(torch.ones(1), torch.zeros(1)))"),
    "a file that is written": ("out = open(os.devnull, 'w')", "out.write('step')\n        factor = 1.0"),
    "a logger": ("log = logging.getLogger('x')", "log.info('step %d', step.number)\n        factor = 1.0"),
    "a lock": ("lock = threading.Lock()", "with lock: factor = 1.0"),
    "a compiled pattern": ("import re\np = re.compile('a')", "factor = 1.0 if p.match('a') else 2.0"),
    "an object of options": (
        "class Options:\n    def __init__(self): self.scale = 0.5\noptions = Options()",
        "factor = options.scale",
    ),
    "a sum that is only printed": (
        "total = 0.0",
        "factor, total = 1.0, total + step.number\n        if step.number % 3 == 2:\n"
        "            print(f'{total / 3:.2f}')\n            total = 0.0",
    ),
    "a meter that is only printed": (
        "class Meter:\n    def __init__(self): self.reset()\n    def reset(self): self.sum = self.n = 0\n"
        "    def update(self, v):\n        self.sum += v\n        self.n += 1\n        self.avg = self.sum / self.n\n"
        "meter = Meter()",
        "factor = 1.0\n        meter.update(step.number)\n        print(meter.avg)",
    ),
    "a list of losses that is only logged": (
        "losses = []",
        "factor = 1.0\n        losses.append(step.number)\n        logging.info('%s', np.mean(losses[-3:]))",
    ),
    "optimizers in a list": (
        "optimizers = [optimizer]",
        "factor = 1.0\n        for one in optimizers: one.step()",
    ),
    "a flag that decides whether to print": (
        "verbose, n = False, 0",
        "factor, n = 1.0, n + 1\n        if n > 3:\n            if verbose: break",
    ),
    "a space of which only the shape is read": (
        "sobol = torch.quasirandom.SobolEngine(1)",
        "factor = 0.1 * sobol.dimension",
    ),
    "a pair made of a list that is only read": (
        "old = [1.0]",
        "pair = [old, 1]\n        pair.append(2)\n        factor = sum(pair[0])",
    ),
    "a meter that is only printed in an f-string": (
        "class Meter:\n    def __init__(self): self.s = 0; self.n = 0\n"
        "    def update(self, v): self.s += v; self.n += 1\n    @property\n"
        "    def avg(self): return self.s / max(1, self.n)\n    def __str__(self): return f'{self.avg}'\n"
        "m = Meter()",
        "m.update(1.0); print(f'{m}', str(m)); factor = 1",
    ),
    "a dict with attributes": (
        "class Config(dict):\n    def __getattr__(self, k): return self[k]\n"
        "    def __setattr__(self, k, v): self[k] = v\nc = Config(a=1)",
        "factor = c.get('a'); c.items()",
    ),
    "a count that decides when to print": (
        "n = 0",
        "factor = 1.0\n        n += 1\n        if n % 2 == 0: print(step.number)",
    ),
    "a variable that has the name of an attribute": (
        "n = 0\nclass C:\n    def __init__(self): self.n = 2.0\nc = C()",
        "factor = c.n\n        n += 1",
    ),
    "a metric that is only updated and shown": (
        "class Metric:\n    def __init__(self): self.all, self.seen = {}, torch.zeros(3, dtype=torch.long)\n"
        "    def update(self, **v):\n        self.seen[0] += 1\n        for k, x in v.items(): self.all.setdefault(k, []).append(x)\nmetric = Metric()",
        "factor = 1.0\n        metric.update(loss=float(step.number))\n        print(metric.all)",
    ),
    "a subclass of a logger": (
        "class L(logging.LoggerAdapter):\n    def process(self, m, k): self.extra['n'] = 1; return m, k\n"
        "l = L(logging.getLogger('a'), {})",
        "l.info('x'); factor = 1",
    ),
    "an autograd.Function that keeps nothing": (
        "class Fn(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, v): ctx.save_for_backward(v); ctx.k = 3; return v\n    @staticmethod\n"
        "    def backward(ctx, g): v, = ctx.saved_tensors; return g * v",
        "factor = Fn.apply(torch.ones(()))",
    ),
}
"""The same with what every state holds, or what does not change."""


def script(before: str, turn: str, early: str = "") -> str:
    """The whole of one of them."""
    return START.replace("{before}", textwrap.dedent(before)).replace("{turn}", turn).replace("{early}", early)
