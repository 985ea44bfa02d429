"""Text in, tokens or their number out: the built-in approximate tokenizer, which needs no files and no network.

It splits as the pattern of `o200k_base` does, and stands in for its merges with lengths, endings and a table of Chinese
pairs. It counts nothing but text (no message overhead), and runs on whichever thread calls it.
"""

import re
from binascii import crc32

# Strategy. One match of the pattern is one token, so a count is the length of one findall(): 20 MB of English a second.
# Every repeat and lookahead is bounded, for two reasons: hostile text costs linear time, and a long text can be cut.
# The numbers were fitted to the exact counts of o200k_base (tiktoken's pattern and ranks) over English, German and
# Chinese manuals, reviews and news, source code and JSON. What stands beside a number is what it was fitted to.

# German words of eight to ten letters, capitalised ones of seven to nine, that end so are mostly one token.
_TOKEN_GERMAN_ENDINGS = """
abe ace ach ade ael age alb amm ard are ase ate bar cht dem den det dig dwo ect ell eln eme ems ens ent ere ess est
ett eug hen ial ibt ich ied iel ien ies iff ils ing ion ite itt ity ive las lem len lle lls llt lne mme mte nal nce
nen ner net nft ngs ngt nse ode oft ons ort ows pen ral rds red rnt sam ser sor sse ted tel tet tig top uck ude und
zei zen zer
"""

# Characters of a long text between two breaths: about 3 ms of English.
_TOKEN_WINDOW_CHARS = 65536

# Texts up to this length are counted once: 0.1 us for a known one, 1 us and more for a new one. At most 2 MB in all.
_TOKEN_CACHED_CHARS = 256
_TOKEN_CACHED_TEXTS = 4096

# The same when the pieces are kept: 3 ms of Chinese at the worst.
_TOKEN_SPLIT_CHARS = 16384
# Where every tokenizer begins a token: before a space between two words, and at the beginning of a line.
_TOKEN_BORDER = re.compile(r"(?<=\w)(?= [^\W\d_])|\n(?=\w)")

# Where a match begins, the pattern looks at fewer characters ahead than this (the longest repeat takes 100).
_TOKEN_REACH_CHARS = 256

# English words of more than eight letters that end so are mostly one token (nine in ten of those in prose and code);
# German ones hardly ever end so (one in eight), and are mostly two or more.
_TOKEN_ENDINGS = """
ace age als and ant ark ary ate bes ble cal ced ces ded dge ely ent ere ers ful ged ght hed hip ial ics ide ied
ies ily ing ion ise ish ism ity ive lar led les lly med mer mes nal nce ncy nds ned nge nic nse nts ogy ols one
ons ore ors ory ost ous ped rds red sed ses sly sor tal ted tem tes tic tly tor ual uce ult und ure ute ves yed
"""

# Pairs of Han characters that are one token: a first character, then each second one. The most frequent 1300 in news,
# reviews and manuals; every other Han character counts as a token of its own.
_TOKEN_HAN_PAIRS = """
一下个些句天定家年本样次步点直种致般起道 万人元吨 三个星 上一下传午市海的述 下一午来载降面
不上了仅会停像到可同好少开得断是用能要起足过错 专业家 世界纪 业务 东方西 两个 严格重 个人月 中华国央心文的
丰富 为了 主义人任体动席持管要题 举办行 之一前后外间 九九 也是 书记 了一解 事业件务实情故 于是 五星
亚洲 交换易流通 产业品生 人口员在士大才民物生的 亿元 什么 今天年 介绍 他们的说 代理码表 令人
以上下前及后来 价值格 任何务 企业 优势化惠秀 伙伴 会上员议 传播统 但是 位置 住宅宿房 体现系育验
作为品用者 你的 使用 例如 供应 依法 便利 促进 保存护持证险障 信息用 修改 值得 做到好 停止车 健康
儿童 允许 元素 充分 先生进 免费 党员委的 入住 全国年球部面 公交共司安布平开斤里 共享同有 关于注系联键闭
兴趣 其中他它实次 具体有 内容部 再次 军事 农业村 冠军 决定 准备确 凌晨 减少 几个十年
出了去口来版现生的租 函数 分享别析钟 列表 创建新造 删除 利润用益 别人 到了底 制作定度造 力度量 办公法理
功能 加入工强载 动作力态物 努力 劳动 包含括装 北京 区别域 医学生疗院 匿名 十一二五分四 千万 升级 半年
协会议调 单位 南京 卫生 印度 即可 历史 压力 厕所 原则因 去了年 参与加数考 及时 双方 反馈
发动展布挥现生行表送 取得消 受到 变化量 句话 另一外 只是有能 召开 可以是能 台湾 号码 司机 各种
合作同法理 同志时步 名单字称 后台来的 否则 启动 告诉 员工 和平 咨询 品牌质 哈哈 响应 哪个些里 唯一
商业务品 喜欢 四川 回复应来答 因为此素 团队 困难 固定 国产内外家际 图片 土地 在哪线 地区址方点 坚定持
垃圾 城市 培养训 基地层本础金 增加强长 声明音 处理 复制杂 外交国 多个人少年数 大众会利厅型学家小师的量陆
天下天气津 失败 奋斗 女人子性 好了多的 如下今何果此 妈妈 委员 娱乐 媒体 子的 字体段符 存在 学习校生院
孩子 安全徽排装 完全善成整 官方 定义位 宝宝 实体例力施现行践际验 客户服 宣传布 家具庭的 容易量 密码
对于应此象 寻找 导致 将在 小姐学时说 少年 尤其 就业在是 居民 展开示 属于性 山东区 岁的 岗位 州市
工业作具商程 左右 巨大 已有经 市场委 布局 希望 帐号 帮助 常委 干部 平台均 年代前底来的轻龄 幸福运
广东告大州播 应用该 建立筑议设 开发启始展心放的 引用 强调 当前地天然 形式成 影响 很多好 得到 循环 德国
心理 必要须 快乐捷速 怎么样 思想 性的能质 总体结统 恢复 您的 情况 想到 意义思见识 感觉谢
成为人功员本果熟立绩长 我们国是的要 或者 战争略 所以在有谓 手机续 才能 打印开 执行 扩大 扫描 扶贫 批准
找到 承担 技术 投入诉资 报告道 拥有 持续 指出定导数标 按摩照钮 挑战 授权 排序 探索 接受口 控制
推出动广荐进 措施 描述 提交供出前升示醒高 搜索 操作 支付持 收入到藏费 改变善革 攻击 放心 政协府治策
故事 效果率 教学师授材育 数字据组量 整个体数理 文件化字学明本章 新版的闻 方便向式案法面 施工 旅游
无人法线 日前在志期本电讯 早餐 时代候期间 明显确 星期 春节 昨天 是一不否在真 显示 晚上 普通 智慧
更加多新 最低佳后多大好新终近高 月份 有人关所效 朋友 服务 期待间 未来知 本人 机会关制器场构 权限 材料
条件 来了到源的看自说 查看询 标准 核心 根据 格式 案件 检查测 模块式 欢迎 欧洲 歌曲 正在常式确规 此次
步骤 武汉 每天 比例如赛较 毕业 民主族 水平果 永久 江苏 污染 汽车 没人有 河北 治理疗 法国律院 注册意
活动 测试 浏览 浙江 海南外 消息费 涉及 深入化圳 添加 渠道 游客戏 湖北南 源码 满意足 漂亮 漏洞 演员
漫画 点评 热点 然后而 照片 爱情的 爸爸 版本 特别殊点色 犯罪 状态 环境 现代在场实金 理念由解论 甚至
生产命态成日活 用了于品户途 由于 申请 电子影脑视话 男人 留下 病毒 登录记 百分 的一不人大小新是话 监督管
目前录标的 直到接 相信关比 省委 看到来的看 真实正的 知识道 研究 确保定认 社会区 禁止 科学技研 积极
移动 程序度 稳定 空气间 突出然破 窗口 立即 竞争 章节 符合 第一三二五四 等待等级 答案 策略 简单 算法
管理 类似别型 精彩神 系列统 累计 纪录 组件合成织 终于 经典历济理营过验 结合束构果 给予 统一计 继续
维修护 综合 编号码辑 网上站络页 美元国 群众 老人师 考虑试 而言 职业 联合盟系 股份票 背景 能力够
自主动己治然由行身 至少 舒服 艺术 节目 英国文语雄 范围 获取得 菜单 营业 落实 董事 蒙古 虽然
行业为动政 表现示达 装修 要求 覆盖 观察点 规划则定律模范 视频 觉得 角色 解决析释 计划算 订单
认为真证识 讨论 让我 训练 记录者 讲话 设备施置计 访问 证券明 评价论 详细 语言 说明 请求 读取
调整查用 谢谢 负责 贡献 财政 责任 账户 质量 购买物 贯彻 贷款 贸易 费用 资产料本源金 起来 超级过
趋势 距离 路径线 身份体 车辆 转换 软件 输入出 达到 过去滤程 运动行输 近期 返回 还是有能
这一个么些是样种里 进入去口行 违法 连接续 退出 选择 通信常知过 速度 造成 道路 避免 邀请 那个么些里
邮件箱 部分署长门 都会是有 配置 酒店 采取用访 释放 里的面 重复大庆新点要 金融 针对 铁路 银行 链接
销售 错误 长度期 问题 阅读 阶段 附近 降低 限制定 除了 随后机着 集中团 需求要 青年 非常法 面对的积
革命 韩国 音乐 页面 项目 预算计 领域导 颜色 风险 飞机 食品 首先次 香港 马上克 验证 高度校级 黄金
默认
"""

# Han characters that are one token; every other one is two, in Extension A three, beyond the BMP four.
_TOKEN_HAN_SINGLES = """
一丁七万丈三上下不与专且世丘业东丝两严並丨个中丰串临丶丸丹为主丽举乃久么义之乌乎乐乔乗乘乙九也习乡书买乱乳乾亂了
予争事二于亏云互五井亚些亞亡交亦产亩享京亭亮亲人亿什仁仅今介仍从仓仔仕他付仙代令以仪们仲件价任份企伊伍伏休众优伙
会伝伟传伤伦伯估伴伸似但位低住佐体何余佛作你佣佩佳使來例供依侠価侣侧侯侵便係促俄俊俗保信修俱俺個倍們倒候借倡値倫
债值倾假偏做停健側偶偷偿傅備储催傳傷働像僕價億優儿允元兄充兆先光克免児兑兒兔党入內全兩八公六兰共关兴兵其具典养兼
兽内円冈冊册再冒写军农冠冬冰冲决况冷冻净准凉凌减凝几凡凤処凭凯凰凸出击函刀分切刊刑划列刘则刚创初删判別利别到制刷
券刺刻剂則削前剑剤剧剩剪副割創劇力办功加务动助努励劲劳効势勇勒動務勝募勢勤勿包化北匙匹区医區十千升午半华协卒卓協
单卖南単博占卡卢卧卫印危即却卷卸厂厅历厉压厕厘厚原厦厨去县参參又叉及友双反収发叔取受变口古句另只叫召可台史右叶号
司吃各合吉吊同名后吐向吕吗君吞吟否吧吨含听启吴吸吹吻吾呀呈告员呢周味呵呻呼命咋和咖咨咪品哈响員哥哦哪哭哲唐售唯唱
商啊問啥啦啪善喊喘喜喝單営喷嗎嗯嘉嘎嘛嘴嘿噜器四回因团団园困囲図围固国图圆圈國園圖團土圣在地圳场圾址坂均坊坏坐坑
块坚坛坝坡坦坪垃型埃城埔域培基堂堡報場堵塑塔塘塞填境墓増墙增墨壁壇士壮声売处备変复夏夕外多夜够夢大天太夫央失头夹
夺奇奈奉奋奏契奔奖套奥女奴奶奷奸她好如妇妈妓妖妙妞妮妹妻姆始姐姑姓委姚姜姨姿威娃娇娘娛娜娱婆婚婦婷媒媳媽嫁嫂嫌嫩
嬉子孔孕字存孙孟季孤学孩學宁它宅宇守安宋完宏宗官定宜宝实実宠审客宣室宫宮害宴家容宽宾宿寄密富寒寓寝察實寨寫寶寸对
寺寻导対寿封専射将將專尊尋對導小少尔尖尚尝尤就尸尺尼尽尾尿局屁层居届屋屏展属履屯山岁岗岛岡岩岭岳岸峡峰島崎川州巡
工左巧巨差己已巴巻币市布帅师希帐帖帝带師席帮帯帰帳帶常帽幅幕干平年并幸幻幼幽广広庄庆床序库应底店府废度座庫庭康廉
廣延廷建开异弃弄弊式引弗弘弟张弱張強弹强归当录形彦彩彰影役彻彼往征径待很律後徐徒得從御復循微徳徴德徽心必忆忍志忘
忙応忠忧快念忽怀态怎怒怕怖思怡急性怪总恋恐恒恢恩息恶悉悟悠患悦您悪悲情惊惑惜惠惨惯想意愛感愿慈態慎慢慧慰懂應戀戏
成我戒或战戦截戰戲戴戶户戸戻房所手才扎扑扒打払托扣执扩扫扬扰扱扶批找承技把抓投抗折抜択抢护报披抱抵押抽担拆拉拍拒
拓拔拖拘招拜拟拥拨择括拳拼拾拿持挂指按挑挡挣挥振挺捕损换据捷掃授掉掌排掛採探接控推措掲揉描提插換握揭援搏搜搞搬搭
携摄摆摇摘摩摸撃撑撒撞撤播撮撸擊操據擦攝支收改攻放政故效敌敏救敗教敢散敦敬数整敵數文斗料斤断斯新方於施旁旅旋族旗
无既日旦旧旨早旬旭时旺昂昆昌明易昔星映春昨昭是昼显時晋晒晓晚晨普景晰晴晶智暂暇暑暖暗暨暮暴曜曝曰曲更書曹曼曾替最
會月有朋服朗望朝期木未末本札术朱机杀杂权杆杉李杏材村杜束条来杨杭杯杰東松板极构析林枚果枝枪架柄柏某染柔柜查柱柳柴
査标栋栏树栗校株样核根格桂桃框案桌桑档桥桶梁梅條梦梨梯械检棋棒棚森植椒検楚業極楼楽概榜構様槽樂樓標模樣横橋機橹橾
權欠次欢欣欧欲欺款歉歌歓歡止正此步武歩歲歳歴歷死殊残殖段殺毁毅母毎每毒比毕毛毫氏民气気氣氧水永汁求汇汉汗江池污汤
決汽沁沃沈沉沒沖沙沟没沢沪河油治沿況泄泉泊法泛泡波泥注泰泳泽洁洋洗洛洞津洪洲活派流浅浆测济浓浜浦浩浪浮浴海消涉涓
涙涛润涨涩涯液涵淘淡淫深混添清済渐減渠渡温測港游湖湘湾湿満源準溪滋滑滚满滤滨滴滿漂漏演漢漫潔潘潜潭潮澡澳激灣火灭
灯灰灵灾炉炎炒炮炸点為炼烈烟烦烧热無焦然焼煌煙煤照熊熟熱燃燕營爆爰爱爵父爷爸爽片版牌牙牛牡牢牧物牲特犬犯状狂狐狗
狠独狸狼猎猛猜猪猫献猴獸玄率玉王玖玛玩环现玲玻珍珠班現球理琪琳琴瑞璃環瓜瓣瓦瓶甘甚甜生產産用田由甲申电男甸町画畅
界留略番畫異當疆疑疗疫疯疲疼疾病症痛療癌発登發白百的皆皇皮盆盈益盐监盒盖盗盘盛盟監盤目直相盾省眉看県真眠眼着睛睡
督瞬知矩短石矿码砂研砖破础硕硬确碍碎碑碰確碼磁磨示礼社祖祝神祥票祭禁福禧离禽禾秀私秋种科秒秘租秦积称移程稍税種稱
稳稿穆積穴究空穿突窍窗窝窥立站竞竟章童端競竹笑笔符第筆等筋筑答策筛筹签简算管箭箱節篇築篮簡籍米类粉粒粗粤粮精糕糖
系紀約紅納純紙級素索紧紫累細紹終組経結絡給統絲絶經続維網総緒線締編縄縮總績繁續纠红约级纪纬纯纲纳纵纷纸纹纽线练组
细织终绍经绑结绕绘给络绝统继绩绪续维综绿缓编缘缩缴缺网罗罚罩罪置署羅羊美羞群義羽翁翌習翔翠翻翼耀老考者而耐耗耳聊
职联聘聚聞聪聯聲職肃肉肌肖股肤肥肩肯育肺胃胆背胎胖胜胞胡胶胸能脂脑脚脱脸腐腕腰腳腹腾腿膜膽臀臣自臭至致臺與興舍舒
舔舗舞舟航般舰船艇良色艳艷艺艾节芝芬芯花芳芸芽苍苏苑苗若苦英范茶茸草荐荒荡荣药荷莉莎莓莞莫莱莲获菌菜華菲萄萌萝营
萨萬落葉著葛葡董蒂蒙蒲蓝蔡蕉蕩薄薦薪薬藏藝藤虎虐虑處虚號虫虹虽蛇蛋蛛蜂蜜蝶融血行術街衛衡衣补表袋袖袜被袭裁裂装裏
裕裙補裝裤裸製襪西要覆見規視覚覧親観覽觀见观规视览觉角解触言訂計訊討記訪設許訳診証評詞詢試話詳誉誌認誘語說説読誰
課調談請論講謝證識警議護讀變讓计订认讨让训议讯记讲许论设访诀证评识诈诉诊词译试诗诚话询该详语误诱说请诸诺读课谁调
谈谋谓谜谢谨谱谷豆豊象豪豹貌負財貨販責買貸費貼賀資賞質購贝负贡财责贤败账货质贫购贯贴贵贷贸费赁资赋赌赏赔赖赚赛赞
赠赢赤赫走赴赵赶起超越趋趣足跃跌跑距跟跨路跳践踏踩踪躁身車軍転軽較載輪輯輸轉车轨轩转轮软轴轻载较辅辆辉辑输辖辛辞
辣辦辨辰辱農边辺込辽达迁迅过迈迎运近返还这进远违连迟迪迫述迷迹追退送适逃逆选逊透逐递途這通速造連週進逸逻逼遂遇遊
運遍過道達違遗遠遣遥適遭遮遵選避邀還邑那邦邪邮邻郎郑部郭郵都配酒酷酸醉醒醫采释里重野量金鉄鉴銀錄錯録鍵鏈鐘鑫针钟
钢钥钮钱钻铁铃铜铭银铺链销锁锅锋锐错锡锦键镇镜長长門閉開間関閱閲關门闪闭问闲间闻阁阅队阪防阳阴阵阶阻阿附际陆陈陌
降限院除险陪陰陵陶陷険陽隆隊階随隐隔際障难雀雄雅集雑雕雙雞離難雨雪零雷電需震霍霞露霸青靖静非靠面革鞋韓韩音響頁頂
頃項順須預領頭頻頼題額顔願類页顶项顺须顾顿预领频颖颗题颜额風风飛飞食飯飲養餐館饭饮饰馆馈首香馨馬駅験驗马驰驱驶驻
驾验骑骗骚骤骨骰體高鬼魂魅魏魔魚鱼鲁鲜鲸鳥鸟鸡鸣鸭鸿鹅鹏鹰鹿麗麟麦麻麼黃黄黎黑黒默點鼎鼓鼠鼻齐齢龄龍龙
"""

# Symbols and emoji that are one token; the others are two or three, and two flags letters of two each are four.
_TOKEN_SYMBOL_SINGLES = (
    "–—―‘’‚“”„‟†‡•․…‰′″‹›※‼₂₪€₹℃№™ΩⅠⅡⅤⅴⅼ←↑→↓⇒∀∆−∙√∞∨≈≤≥≫①②③④⑤─━│┃├┣═║╗╝▀▄█▋░▒▓■□▪▫▬▲△▶▷►▼▽◆◇○◎●★☆"
    "☎☴☺♀♂♡♥♦♪♫✅✓✔✨❤➡⠀⭐⭕🏻🏼👇👉👌👍👏💕🔥😀😁😂😉😊😍😘😭🙂🙏🤣\u2028\u202a-\u202f\u2060\u2063\u20e3")

# What the patterns name as <NAME>; a value may name others that stand above it. `re` knows no \p classes.
_TOKEN_PARTS = (
    ("PUNCT", r"[!-/:-@\[-`{-~]"),
    ("GERMAN", "äöüßÄÖÜ"),
    ("SLAVIC", "Ā-ĂĄ-ďĒ-ħĪ-ŒŔ-ŧŪ-ƀ"),
    ("VIET", "ăđĩũơưẠ-ỹ\u0300-\u036f"),
    ("WEST", "à-ãåæç-õøù-ûýÿÀ-ÃÅÆÇ-ÕØÙ-Ûœ"),
    ("ACCENT", "ß-öø-ÿÀ-ÖØ-ÞĀ-ɏḀ-ỿ\u0300-\u036f"),
    ("CYRILLIC", "\u0400-\u052f"),
    ("GREEK", "\u0370-\u03ff\u1f00-\u1fff"),
    ("ARABIC", "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefe"),
    ("HANGUL", "\uac00-\ud7a3"),
    # Armenian, Hebrew, Syriac and on to Ethiopic and Cherokee, with the scripts of India and South-East Asia.
    ("OTHER", "\u0530-\u05ff\u0700-\u074f\u0780-\u1eff"),
    ("HAN", "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"),
    ("KANA", "\u3041-\u30ff"),
    # Kana that mostly stand alone; the others pair with the next one.
    ("KANASINGLE", "うおがきくけつてにのはべもらりるをアグサザセソタッドバパムメリルワ"),
    ("CJKPUNCT", "\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\u2014\u2018-\u201f\u2026"),
    # Han characters that a space before them joins; then what a comma or full stop before it joins.
    ("HANSPACED",
     "一上下不与两个中为主于从会位使保信做光公内出分创初删到前加包十即原参可同名后和回在地基多大如子字安完"
     "定实客对将就属工已常年应建开引当很必总成我或所手打找指接控描提操数文新时是更最月有未本权来查标格模次"
     "此每比注添清特用的相禁第等管类系给编网能自至若行表被要解设请调转软输返通那邮都配重项首高默"),
    ("HANCOMMA",
     "我们|他们|如果|但是|所以|可以|因[此为]|同[时比]|没有|通过|这是|那么|[而并]且|就是|以及|也是|还有|对于|"
     "例如|需要|一个|其[中他]|目前|此外|然[后而]|另外|不过|今年|当然|截至|现在|根据|非常|谢谢|希望|包括|中国"
     "|["
     "一不与中为也于仅从他以会但你其共再则到加即却又只可各同因在多大如它对将小就并应当很总我所把是更有本此"
     "每比没由看第经美而自被要让该请还这那都需"
     "]"),
    ("WORD", "a-z<ACCENT>"),
    ("LONG", "[a-z]{1,<FURTHER>}(?![a-z<ACCENT>])<ENDING>"),
    ("CONTRACTION", "'(?:s|t|re|ve|m|ll|d)(?![a-z])"),
    # An accented letter in a word, with the letters after it that share its token. Each language its own: Czech and
    # Polish words fall into many tokens, Spanish and Vietnamese ones into few.
    ("ACCENTED", "[<GERMAN>][a-z<GERMAN>]{0,3}|[<WEST>][a-z<WEST><VIET>]{0,5}|[<SLAVIC>]"
                 "|[<ACCENT>][a-z<WEST><VIET>]{0,3}"),
    ("REST", "(?:<CONTRACTION>|<ACCENTED>|)"),
    ("WORDREST", "(?:<LONG>|<CONTRACTION>|<ACCENTED>|)"),
    # Symbols that a space before them joins.
    ("SYMBOL", "\u2190-\u227f\u22c0-\u2300\u2340-\u243f\u2500-\u2775\u2794-\u2aff\u2b40-\u2bff"
               "\U0001f000-\U0001f3bf\U0001f440-\U0001f93f\U0001f97f-\U0001faff"),
    ("RUN", r"-{4,80}|={4,80}|\*{4,80}|\#{4,80}|/{4,80}|_{4,40}|\.{4,40}|~{4,40}|\+{4,40}"),
)

# Limits of runs of letters that are one token: lowercase ones and capitalised ones behind a space, then the same
# without it; and how many letters more make one token where the ending is right. German words fall apart sooner than English ones (and than the words of code, which are English).
_TOKEN_LIMITS = (("LOW", "8"), ("CAP", "4"), ("BARELOW", "6"), ("BARECAP", "7"), ("FURTHER", "10"))
_TOKEN_LIMITS_GERMAN = (("LOW", "7"), ("CAP", "4"), ("BARELOW", "4"), ("BARECAP", "3"), ("FURTHER", "3"))

# German is what has an umlaut and one of these words for every so many characters of its beginning.
_TOKEN_GERMAN_WORDS = " (?:der|die|das|und|nicht|ist|den|mit|sich|ein|eine|zu|auf|f\u00fcr|von|wird|werden|im)\\b"
_TOKEN_GERMAN_CHARS = 120
_TOKEN_GERMAN_SAMPLE = 2000

# Characters that are one token or stand in the pattern; but for the singles, all others are two tokens or more.
_TOKEN_KNOWN = "\\x00-\u2012\u2c00-\u33ff\ua000-\uf8ff\ufb00-\U0001efff\U0001fb00-\U0001ffff"

# Those of the others that are three.
_TOKEN_THREE = ("[\u2340-\u243f\u26c9-\u26ff\u27c2-\u27ff\u2801-\u2aff\u2b56-\u2bff\u3400-\u4dbf"
                "\U0001f000-\U0001f1bf\U0001f200-\U0001f2ff\U0001f546-\U0001f5ff\U0001f6c9-\U0001f8fe"
                "\U0001f983-\U0001f9cf\U0001f9d1-\U0001faff\U00020000-\U0010ffff]")

# A word takes one leading space with it, and so does what stands in the part for spaces. One alternative a line; a line
# that ends with "#+" can only match beyond ASCII, and is left out of the pattern for plain ASCII text.
_TOKEN_PATTERN = r"""
(?=[<HAN>])(?:<HANPAIR>|[<HAN>])|           #+
(?:[ ](?:[a-z]{1,<LOW>}|[A-Z][a-z]{1,<CAP>})|(?<![<WORD>])[a-z]{1,<BARELOW>}|[A-Z][a-z]{1,<BARECAP>})<WORDREST>
|[ ](?:
  [A-Z](?:[A-Z]{1,7}(?![a-z])|<REST>)
 |<RUN>
 |<PUNCT>{1,3}(?!<PUNCT>)[\r\n/]{0,8}
 |<PUNCT>{1,2}
 |<ACCENTED>                                #+
 |[<CYRILLIC>]{1,7}                         #+
 |[<ARABIC>]{1,4}                           #+
 |[<GREEK>]{1,4}                            #+
 |[<HANGUL>]{1,2}                           #+
 |[<OTHER>]{1,3}                            #+
 |[<HANSPACED>]                             #+
 |[<CJKPUNCT>]{1,2}[\r\n]{0,4}              #+
 |\u2764\ufe0f                              #+
 |[<SYMBOL>]                                #+
)
|(?<=[a-z])[a-z]{1,5}<REST>
|(?<=[<SLAVIC>])[a-z]{1,3}                  #+
|[A-Z](?:[A-Z]{1,2}(?![a-z])|<REST>)
|[0-9]{1,3}
|<RUN>
|[_.(\#\[*'][a-z]{1,6}
|-[a-z]{1,5}
|/[a-z]{1,5}
|[:<;=][a-z]{4,6}(?![a-z])
|\t[a-z]{2,6}
|_[A-Z]{1,4}(?![a-z])
|[.\-=_][A-Z][a-z]{1,5}
|<PUNCT>[A-Za-z](?![A-Za-z])
|":[\[{]"
|<PUNCT>{1,3}(?!<PUNCT>)[\r\n/]{0,8}
|<PUNCT>{1,2}
|\s{0,100}[\r\n]
|\s{1,100}(?!\S)
|\s
|[<KANASINGLE>]                             #+
|[<KANA>]{1,2}                              #+
|[，。](?:<HANCOMMA>)                       #+
|[<CJKPUNCT>]{1,2}[\r\n]{0,4}              #+
|\u2764\ufe0f                              #+
|(?:\u2500{2,16}|\u2550{2,16}|\u2588{2,8})  #+
|<ACCENTED>                                 #+
|[<CYRILLIC>]{1,5}                          #+
|[<ARABIC>]{1,3}                            #+
|[<GREEK>]{1,3}                             #+
|[<HANGUL>]{1,2}                            #+
|[<OTHER>]{1,3}                             #+
|(?s:.)
"""


def _token_endings(endings):
    """Return a lookbehind for endings, grouped by first letter so that a miss tries few places."""
    grouped = {}
    for ending in endings.split():
        grouped.setdefault(ending[0], []).append(ending[1:])
    return "(?<=%s)" % "|".join("%s(?:%s)" % (first, "|".join(rest)) for first, rest in grouped.items())


def _token_han_pairs():
    """Return a pattern for _TOKEN_HAN_PAIRS, in groups of neighbours: a match tries some 40 places, not 600."""
    groups = sorted(_TOKEN_HAN_PAIRS.split())
    alternatives = []
    for start in range(0, len(groups), 25):
        near = groups[start:start + 25]
        pairs = "|".join("%s[%s]" % (group[0], group[1:]) for group in near)
        alternatives.append("(?=[%s-%s])(?:%s)" % (near[0][0], near[-1][0], pairs))
    return "|".join(alternatives)


def _token_compile(plain=False, german=False):
    """Return the compiled pattern; all but the German one split an ASCII text alike.

    plain: True for ASCII text only, which compiles in a tenth of the time.
    """
    pattern = _TOKEN_PATTERN
    endings, limits = (_TOKEN_GERMAN_ENDINGS, _TOKEN_LIMITS_GERMAN) if german else (_TOKEN_ENDINGS, _TOKEN_LIMITS)
    han_pairs = "" if plain else "[<HAN>]" if german else _token_han_pairs()
    parts = [*limits, ("ENDING", _token_endings(endings)), ("HANPAIR", han_pairs), *_TOKEN_PARTS]
    if plain:
        pattern = re.sub(r".*#\+\n", "", pattern)
    for name, value in reversed(parts):
        if plain:
            value = value.replace("<ACCENTED>|", "").replace("<ACCENT>", "")
        pattern = pattern.replace("<" + name + ">", value)
    return re.compile(pattern, re.VERBOSE)


class _TokenPatterns:
    """The compiled patterns, each when the first text needs it.

    Two threads may both compile one: it is the same, and either may stay.
    """

    def __init__(self):
        self.plain = _token_compile(plain=True).findall

    def __getattr__(self, name):
        if name == "many":
            singles = (_TOKEN_HAN_SINGLES + _TOKEN_HAN_PAIRS).split()
            made = re.compile("[^%s%s%s]" % (_TOKEN_KNOWN, _TOKEN_SYMBOL_SINGLES, "".join(singles)))
        elif name in ("german_words", "three"):
            made = re.compile(_TOKEN_THREE if name == "three" else _TOKEN_GERMAN_WORDS)
        else:
            made = _token_compile(german=name == "german")
        setattr(self, name, made.findall)
        return made.findall

    def find(self, text):
        """The findall() that splits `text`, but for the tokens that end within a character."""
        if text.isascii():
            return self.plain
        if self.may_be_german(text):
            sample = text[:_TOKEN_GERMAN_SAMPLE]
            if len(self.german_words(sample)) * _TOKEN_GERMAN_CHARS >= len(sample):
                return self.german
        return self.other

    @staticmethod
    def may_be_german(text):
        """Whether how a text begins decides how all of it is cut."""
        return "ü" in text or "ä" in text or "ö" in text or "ß" in text

    def further(self, text, *span):
        """How many tokens end within a character of `text`."""
        found = self.many(text, *span)
        return len(found) + len(self.three("".join(found))) if found else 0


class Tokenizer:
    """What every tokenizer offers; any thread may call it.

    name: str, as the command line spells it. inline_bytes: a request of more bytes is counted on a worker thread.
    """

    name = ""
    inline_bytes = 1 << 30

    def split(self, text):
        """Return the tokens of `text`, a list of str with "".join(pieces) == text.

        A piece is empty where a token ends within a character: the character stands in the piece of the token that
        completes it. Who streams pieces sends nothing for an empty one; it counts, and it takes its time.
        """
        raise NotImplementedError

    def count(self, text):
        """Return len(split(text)), in linear time and with a bounded part of the tokens in memory."""
        raise NotImplementedError

    def encode(self, text):
        """Return the tokens of `text` as a list of int, one for each of split()."""
        raise NotImplementedError

    def decode(self, ids):
        """Return the text of a list of int; exactly what encode() was given, for ids that it made."""
        raise NotImplementedError

    def count_slowly(self, text, breathe):
        """Return count(text), with a call of breathe() after each 64 KB or so.

        breathe: takes nothing; what it returns is not looked at. It may sleep, so that a worker lets the GIL go, and
        what it raises ends the count.
        """
        raise NotImplementedError

    def split_slowly(self, text, breathe, most=None):
        """Return split(text), with a call of breathe() after each 16 KB or so. most: with so many pieces the rest may
        be left out."""
        pieces, start = [], 0
        while start < len(text) and (most is None or len(pieces) < most):
            border = _TOKEN_BORDER.search(text, start + _TOKEN_SPLIT_CHARS)
            end = border.end() if border else len(text)
            pieces += self.split(text[start:end])
            start = end
            if start < len(text):
                breathe()
        return pieces

    def is_local(self, text):
        """Return whether parts of `text` are cut, but for their last tokens, as they are in the whole text."""
        return True


class TokenIds:
    """Numbers for pieces: the same piece has the same id on every server, below 2**31.

    Ids of pieces that were never encoded here cannot be known; decode() gives a word for each, so
    that a client that brings another tokenizer's ids still gets text of as many tokens.
    """

    KEPT = 1 << 20                  # pieces whose ids are remembered; then the oldest half is dropped
    SILENT = 0x7FFFFFFF             # the id of every token without text of its own

    def __init__(self, split):
        self._split = split
        self._pieces = {}           # id -> piece

    def encode(self, text):
        """The ids of a text's tokens."""
        ids = []
        pieces = self._pieces
        for piece in self._split(text):
            if not piece:
                ids.append(self.SILENT)
                continue
            number = _token_number(piece)
            while number == self.SILENT or pieces.get(number, piece) != piece:
                number = (number + 1) & 0x7FFFFFFF      # another piece has it: the next one
            pieces[number] = piece
            ids.append(number)
        if len(pieces) > self.KEPT:
            for number in list(pieces)[:self.KEPT // 2]:
                del pieces[number]
        return ids

    def decode(self, ids):
        """The text of ids. Any integers are taken."""
        pieces = self._pieces
        return "".join([pieces.get(number) or " token" for number in ids if number != self.SILENT])


def _token_number(piece):
    return crc32(piece.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


class ApproxTokenizer(Tokenizer):
    """A close guess at `o200k_base`, and the default.

    What callers may rely on, in ASCII text: a lowercase word of up to eight letters is one token together with one
    leading space, and so is a capitalised one of up to five; at the start of a text or of a line (no space), a
    capitalised word of up to eight letters is one. "," and "." after a word are one token each, but newlines that
    follow a mark belong to its token: "end.\\n\\n" is ["end", ".\\n\\n"]. An emoji is mostly two or three tokens: its
    pieces are empty but for the last one.
    """

    name = "approx"

    def __init__(self):
        self._patterns = _TokenPatterns()
        self._find_plain = self._patterns.plain
        self._counts = {}           # short texts come again: with every turn of a chat, its whole history
        self._ids = TokenIds(self.split)

    def encode(self, text):
        return self._ids.encode(text)

    def decode(self, ids):
        return self._ids.decode(ids)

    def split(self, text):
        if text.isascii():
            return self._find_plain(text)
        patterns = self._patterns
        pieces = patterns.find(text)(text)
        return self._with_silent(pieces) if patterns.further(text) else pieces

    def _with_silent(self, pieces):
        """The pieces with an empty one for each token that ends within a character."""
        patterns, whole = self._patterns, []
        for piece in pieces:
            if not piece.isascii():
                whole += [""] * patterns.further(piece)
            whole.append(piece)
        return whole

    def count(self, text):
        if len(text) <= _TOKEN_CACHED_CHARS:
            counts = self._counts
            count = counts.get(text)
            if count is None:
                count = self._count(text)
                if len(counts) >= _TOKEN_CACHED_TEXTS:
                    counts.clear()
                counts[text] = count
            return count
        if len(text) <= _TOKEN_WINDOW_CHARS:
            return self._count(text)
        return self.count_slowly(text, int)

    def _count(self, text):
        if text.isascii():
            return len(self._find_plain(text))
        return len(self._patterns.find(text)(text)) + self._patterns.further(text)

    def count_slowly(self, text, breathe):
        further = None if text.isascii() else self._patterns.further
        total = 0
        for pieces, start, end in self._iter_windows(text, breathe, _TOKEN_WINDOW_CHARS):
            total += len(pieces)
            if further is not None:
                total += further(text, start, end)
        return total

    def split_slowly(self, text, breathe, most=None):
        made, is_ascii = [], text.isascii()
        for pieces, _, _ in self._iter_windows(text, breathe, _TOKEN_SPLIT_CHARS):
            made += pieces if is_ascii else self._with_silent(pieces)
            if most is not None and len(made) >= most:
                break
        return made

    def is_local(self, text):
        return text.isascii() or not self._patterns.may_be_german(text)

    def _iter_windows(self, text, breathe, size):
        """Yield (matches, start, end) of a text, `size` characters at a time and a breath between two."""
        find, start = self._patterns.find(text), 0
        while len(text) - start > size:
            end = start + size
            pieces = find(text, start, end)
            # The matches that could see the end of the window are found again in the next one. Lookbehinds see what
            # stands before `start`, so that nothing else depends on the cut.
            sure = end - _TOKEN_REACH_CHARS
            while end > sure:
                end -= len(pieces.pop())
            yield pieces, start, end
            start = end
            breathe()
        yield find(text, start), start, len(text)
