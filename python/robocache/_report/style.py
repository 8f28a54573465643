"""The page's CSS. Colours are those of Okabe and Ito, which colour-blind people can tell apart; words say the same."""

STYLE = """
:root{color-scheme:light dark;--page:#fff;--card:#f6f7f9;--text:#1c2128;--dim:#59636e;--rule:#dde1e6;--there:#4a8fc0;
--absent:#e6e9ed;--gap:#d55e00;--line:#0072b2;--fill:#9cc7e4;--mark:#b0761a;--good:#00674b;--good-b:#dff3ec;
--fair:#7a4c00;--fair-b:#fdeecb;--bad:#9a3200;--bad-b:#fde2d3}
@media (prefers-color-scheme:dark){:root{--page:#12161b;--card:#1a2027;--text:#e4e8ed;--dim:#9aa5b1;--rule:#2f3842;
--there:#4b8ebd;--absent:#262e37;--gap:#ff8a3c;--line:#6bb9ee;--fill:#2f5f83;--mark:#d9a441;--good:#6fdcb8;--good-b:#12352b;
--fair:#ffcf70;--fair-b:#3b2d0c;--bad:#ffa579;--bad-b:#44200f}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1.25rem 3rem;max-width:66rem;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .15rem}
h2{font-size:1.15rem;margin:2.4rem 0 .3rem;padding-top:.9rem;border-top:1px solid var(--rule)}
h3{font-size:.95rem;margin:0 0 .35rem}
p{margin:.35rem 0}
a{color:var(--line)}
code,pre,.name{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.86em}
.name{font-weight:600}
.dim,figcaption,.caption{color:var(--dim)}
.caption{max-width:50rem;margin-bottom:.8rem}
.small{font-size:.82rem}
.figures{font-variant-numeric:tabular-nums}
.badge{display:inline-block;padding:.05em .6em;border-radius:1em;font-weight:600;font-size:.82rem;white-space:nowrap}
.good{color:var(--good);background:var(--good-b)}.fair{color:var(--fair);background:var(--fair-b)}
.bad{color:var(--bad);background:var(--bad-b)}
.verdict{border-radius:.6rem;padding:.9rem 1.1rem;margin:1rem 0;font-size:1.02rem}
.verdict strong{display:block;font-size:1.25rem;line-height:1.3}
.facts{display:flex;flex-wrap:wrap;gap:.3rem 1.6rem;margin:.6rem 0;padding:0;list-style:none}
.facts b{font-variant-numeric:tabular-nums}
nav{margin:.8rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.88rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--dim);font-size:.78rem;vertical-align:bottom}
th,td{padding:.4rem .7rem .4rem 0;border-bottom:1px solid var(--rule)}
td{vertical-align:middle}td:first-child{min-width:8rem}
td.n,th.n{text-align:right;white-space:nowrap}
.findings{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(27rem,100%),1fr));gap:.8rem}
.finding{background:var(--card);border-radius:.5rem;padding:.7rem .9rem;break-inside:avoid;min-width:0}
.finding ul{margin:.3rem 0 .1rem;padding-left:1.1rem}
pre{margin:.5rem 0 0;padding:.55rem .75rem;background:var(--page);border:1px solid var(--rule);border-radius:.35rem;
white-space:pre-wrap}
details{margin:.8rem 0}summary{cursor:pointer;color:var(--line)}
svg{display:block;width:100%;overflow:visible}
.spark{width:9rem;height:1.9rem}.spark path{fill:var(--fill);stroke:var(--line);stroke-width:1.2}
svg path.thin,.spark path.thin{fill:none;stroke:var(--line);stroke-width:1.6}
svg path,svg line{vector-effect:non-scaling-stroke}
.rows{display:grid;grid-template-columns:minmax(6rem,13rem) 1fr;gap:.35rem .9rem;align-items:center;font-size:.86rem}
.rows .name{text-align:right}
.rows.three{grid-template-columns:minmax(6rem,13rem) 1fr 13.5rem}
.raster,.ticks{height:1.15rem;background:var(--absent);border-radius:2px;shape-rendering:crispEdges}
.there{fill:var(--there)}.gap{fill:var(--gap)}.cut{stroke:var(--page);stroke-width:1.5}
.scale{display:flex;justify-content:space-between;color:var(--dim);font-size:.78rem;font-variant-numeric:tabular-nums}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.82rem;color:var(--dim);margin:.5rem 0}
.key i{display:inline-block;width:1.1em;height:.8em;border-radius:2px;margin-right:.4em;vertical-align:-.05em}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(14.5rem,1fr));gap:1.1rem 1.5rem}
figure{margin:0;break-inside:avoid;min-width:0}
figcaption{font-size:.82rem;font-variant-numeric:tabular-nums}
.curve,.delay{height:5.2rem;background:var(--card);border-radius:3px;margin-top:.25rem}
.curve .line{fill:none;stroke:var(--line);stroke-width:2}.mark{stroke:var(--mark);stroke-width:1.3;stroke-dasharray:4 3}
.delay path{fill:var(--fill);stroke:var(--fill);stroke-width:1}
svg path.dots{fill:none;stroke:var(--line);stroke-width:4;stroke-linecap:round}
.delay .line{fill:none;stroke:var(--gap);stroke-width:2}.delay .zero{fill:none;stroke:var(--dim);stroke-dasharray:2 3}
.age{height:1.6rem}.age .grid{stroke:var(--rule);stroke-width:1}.age circle{fill:var(--line)}
.age .thick{stroke:var(--line);stroke-width:5;stroke-linecap:round}.age .thin{stroke:var(--line);stroke-width:1.4}
.age .mark{stroke-dasharray:none;stroke-width:2}
.moment{margin:1rem 0 1.6rem;break-inside:avoid}
.shots{display:grid;grid-template-columns:repeat(4,minmax(0,11rem));gap:.7rem;margin:.7rem 0}
.shots figcaption{line-height:1.3;margin-top:.2rem}
.shots img{display:block;width:100%;height:auto;border-radius:3px;background:var(--absent)}
footer{margin-top:3rem;border-top:1px solid var(--rule);padding-top:.8rem}
@media (max-width:640px){
body{padding:1rem .9rem 2rem}
.rows,.rows.three{grid-template-columns:1fr;gap:.1rem}
.rows .name{text-align:left;margin-top:.45rem}
.rows .blank{display:none}
.shots{grid-template-columns:repeat(2,minmax(0,1fr))}
table,tbody,tr,td{display:block;width:100%}
thead{display:none}
tr{border-bottom:1px solid var(--rule);padding:.6rem 0}
td,td.n{border:0;padding:.08rem 0;text-align:left;display:flex;justify-content:space-between;gap:1rem;
white-space:normal}
td::before{content:attr(data-label);color:var(--dim);flex:none}
td:first-child{display:block}td:first-child::before{content:none}td:empty{display:none}
}
@media print{
:root{color-scheme:light;--page:#fff;--card:#f6f7f9;--text:#000;--dim:#444;--rule:#ccc;--there:#4a8fc0;--absent:#e6e9ed;
--gap:#d55e00;--line:#0072b2;--fill:#9cc7e4;--mark:#8a5a00;--good:#00674b;--good-b:#dff3ec;--fair:#7a4c00;
--fair-b:#fdeecb;--bad:#9a3200;--bad-b:#fde2d3}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
html{font-size:11px}body{padding:0;max-width:none;font-size:11px}
.wide{overflow:visible}.spark{width:7rem}th,td{padding-right:.5rem}.findings{grid-template-columns:1fr 1fr}
h2{break-after:avoid}nav{display:none}summary{list-style:none;color:var(--text)}
details::details-content{content-visibility:visible;block-size:auto}
.panels{grid-template-columns:repeat(3,1fr)}tr{break-inside:avoid}
}
@page{margin:14mm}
""".strip()
